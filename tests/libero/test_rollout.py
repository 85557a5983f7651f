"""The loop itself, with an environment that only writes down what is asked of it."""

import numpy as np
import pytest

from services.libero.profiles import PROFILES
from vla_contract import ActionChunk, PolicyInfo, PolicyRefused, PolicyUnavailable
from vla_contract.protocol.parts import GRIPPER_CLOSES, GRIPPER_OPENS, HAND_STATE, OSC_POSE
from vla_evaluation.actions import Actions, PolicyFault
from vla_evaluation.rollout import run_episode
from vla_evaluation.spec import RunSpec

ACTION = (*OSC_POSE, GRIPPER_CLOSES)

PROFILE = PROFILES["openvla"]


class DiaryEnv:
    """Counts and orders calls; succeeds after `success_after` policy steps."""

    instruction, domain = "put the bowl on the stove", None

    def __init__(self, success_after=10**9):
        self.calls, self.executed, self.success_after = [], [], success_after

    def reset(self, episode, init_state):
        self.calls.append("reset")

    def step(self, action):
        self.calls.append("step")
        self.executed.append(np.array(action))
        return len(self.executed) - PROFILE.wait_steps >= self.success_after

    def render(self, camera):
        self.calls.append(f"render {camera}")
        return np.zeros((256, 256, 3), np.uint8)

    def state(self):
        return np.zeros(8, np.float32)

    def sim_state(self):
        return np.full(5, float(len(self.executed)))

    def fixture_poses(self):
        return {"stove": np.zeros(7)}


def spec(info=None, **changes):
    facts = {"max_steps": 20, "policy": info or PolicyInfo("p", ACTION, horizon=8)} | changes
    return RunSpec("LIBERO", "libero_goal", "openvla", PROFILE.protocol(), action=ACTION, control_hz=20, **facts)


def constant(length, gripper=1.0):
    actions = np.tile(np.array([0.1] * 6 + [gripper], np.float32), (length, 1))
    return lambda observation: ActionChunk(actions, {"infer": 0.0})


def play(env, act, info=None, **changes):
    return run_episode(env, 0, np.zeros(5), act=act, spec=spec(info, **changes), session="s")


def test_wait_steps_precede_the_first_query():
    env = DiaryEnv()
    asked_at = []
    play(env, lambda o: asked_at.append(len(env.executed)) or constant(1)(o), max_steps=3)
    assert asked_at == [10, 11, 12]
    assert all((action == PROFILE.wait_action).all() for action in env.executed[:10])


def test_nothing_is_rendered_during_waits_chunks_or_without_cameras():
    env = DiaryEnv()
    record = play(env, constant(8), cameras=("agentview",))
    drawn_at = [i for i, call in enumerate(env.calls) if call.startswith("render")]
    assert len(drawn_at) == record.requests == 3  # 8 + 8 + 4 steps
    assert env.calls[: drawn_at[0]] == ["reset"] + ["step"] * 10
    blind = DiaryEnv()
    play(blind, constant(8))
    assert not any(call.startswith("render") for call in blind.calls)


def test_only_requested_cameras_are_rendered_and_prepared():
    seen = []
    env = DiaryEnv()
    play(env, lambda o: seen.append(o) or constant(1)(o), cameras=("agentview", "robot0_eye_in_hand"), max_steps=1)
    assert sorted(seen[0].images) == ["agentview", "robot0_eye_in_hand"]
    assert seen[0].images["agentview"].shape == (PROFILE.image_size, PROFILE.image_size, 3)
    assert seen[0].state is None and seen[0].privileged is None
    needy = PolicyInfo("p", ACTION, HAND_STATE)
    play(env, lambda o: seen.append(o) or constant(1)(o), info=needy, max_steps=1)
    assert seen[-1].state.shape == (8,) and seen[-1].images == {}


def test_success_ends_the_episode_in_the_middle_of_a_chunk():
    record = play(DiaryEnv(success_after=5), constant(8))
    assert (record.success, record.steps, record.requests) == (True, 5, 1)
    assert record.actions.shape == (5, 7) and record.states.shape == (6, 5)


def test_success_while_waiting_does_not_count():
    assert play(DiaryEnv(success_after=-5), constant(1)).steps == 1


@pytest.mark.parametrize("chunk", [1, 3, 8, 50])
def test_the_step_limit_holds_for_every_chunk_length(chunk):
    record = play(DiaryEnv(), constant(chunk))
    assert (record.success, record.steps) == (False, 20)


def test_timings_are_split_and_do_not_exceed_the_total():
    record = play(DiaryEnv(), lambda o: ActionChunk(constant(1)(o).actions, {"infer": 0.001}), cameras=("agentview",))
    ms = record.timings.ms
    assert {"reset", "sim", "render", "preprocess", "policy", "wire", "server_infer", "total"} <= set(ms)
    assert ms["server_infer"] == pytest.approx(0.02)
    assert sum(ms[k] for k in ("reset", "sim", "render", "preprocess", "policy")) <= ms["total"]


def test_a_tick_that_raises_ends_the_episode_before_the_next_step():
    env = DiaryEnv()

    def tick(steps):
        if steps == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_episode(env, 0, np.zeros(5), act=constant(8), spec=spec(), session="s", tick=tick)
    assert len(env.executed) == 12


# --- actions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gripper", "raw", "executed"),
    [
        (GRIPPER_CLOSES, [-1.0, -0.2, 0.0, 1.0], [-1.0, -0.2, 0.0, 1.0]),
        (GRIPPER_OPENS, [0.0, 0.2, 0.5, 0.996, 1.0], [1.0, 1.0, 0.0, -1.0, -1.0]),  # 1 = open, and open is −1 here
    ],
)
def test_gripper_conventions(gripper, raw, executed):
    actions = np.zeros((len(raw), 7), np.float32)
    actions[:, 6] = raw
    info = PolicyInfo("p", (*OSC_POSE, gripper), horizon=8)
    result, fault = Actions("p", info.action, ACTION).read(ActionChunk(actions), len(raw))
    assert fault is None
    assert result[:, 6].tolist() == pytest.approx(executed)
    assert (actions[:, 6] == np.array(raw, np.float32)).all(), "the policy's own array must stay as it was"


def test_a_gripper_of_which_only_the_sign_counts_is_clipped_and_its_neighbours_are_not():
    reader = Actions("p", (*OSC_POSE, GRIPPER_OPENS), ACTION)
    actions = np.zeros((3, 7), np.float32)
    actions[:, 6] = [-4.0, 1.6, 3e38]
    result, fault = reader.read(ActionChunk(actions), 3)
    assert fault is None and result[:, 6].tolist() == [1.0, -1.0, -1.0]
    actions[1, 6] = np.nan
    assert "returned nan in action 1, dimension 6" in str(reader.read(Answer(actions), 3)[1])
    actions[1, 5] = 11.0
    assert "returned 11 in action 1, dimension 5" in str(reader.read(Answer(actions), 3)[1])


class Answer:
    """What a service that is not ours may answer: unchecked."""

    def __init__(self, actions):
        self.actions, self.timings_ms = actions, {}


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.full((2, 7), np.nan), r"returned nan in action 0, dimension 0"),
        (np.full((2, 7), np.inf), r"returned inf in action 0, dimension 0"),
        (np.zeros((2, 6)), r"shape \(2, 6\); expected \[T, 7\]"),
        (np.zeros((0, 7)), r"T ≥ 1"),
        (np.full((1, 7), 200.0), r"returned 200 in action 0, dimension 0; .*un-normalised"),
        (np.array([[0, 0, 0, 0, 0, 0, 3.0]]), r"returned 3 in action 0, dimension 6"),
    ],
)
def test_actions_that_must_not_be_executed(actions, message):
    env = DiaryEnv()
    with pytest.raises(PolicyFault, match=message):
        play(env, lambda o: Answer(actions))
    assert len(env.executed) == PROFILE.wait_steps


def test_only_executed_actions_are_checked():
    """Beyond the chunk's part in use, the step limit and success, a value may be what it likes."""
    actions = np.tile(np.array([0.1] * 6 + [1.0], np.float32), (8, 1))
    actions[3:, 6] = 1.6
    assert play(DiaryEnv(), lambda o: Answer(actions), execute=3, max_steps=9).steps == 9
    assert play(DiaryEnv(), lambda o: Answer(actions), max_steps=3).steps == 3
    record = play(DiaryEnv(success_after=2), lambda o: Answer(actions))
    assert (record.success, record.steps, record.policy_error) == (True, 2, "")
    env = DiaryEnv()
    with pytest.raises(PolicyFault, match="1.6 in action 3, dimension 6"):
        play(env, lambda o: Answer(actions))
    assert len(env.executed) == PROFILE.wait_steps + 3, "what came before it was executed, it was not"


def act_until(step, error):
    """Answers well until that step, then raises, or answers what must not be executed."""

    def act(observation):
        if observation.step < step:
            return constant(1)(observation)
        if isinstance(error, Exception):
            raise error
        return Answer(error)

    return act


@pytest.mark.parametrize("error", [np.full((1, 7), 200.0), PolicyRefused("no", 422), PolicyUnavailable("broken", 500)])
def test_forgiven_fault_ends_the_episode_and_is_recorded(error):
    asked = []
    record = run_episode(
        DiaryEnv(), 0, np.zeros(5), act=act_until(4, error), spec=spec(), session="s",
        forgive=lambda fault: asked.append(fault) or True,
    )  # fmt: skip
    assert (record.success, record.steps) == (False, 4) and record.states.shape == (5, 5)
    assert record.policy_error == str(asked[0]) == record.summary()["policy_error"]
    with pytest.raises(type(asked[0])):
        play(DiaryEnv(), act_until(4, error))


def test_images_are_stored_only_when_requested():
    assert play(DiaryEnv(), constant(1), cameras=("agentview",)).frames == {}
    record = run_episode(
        DiaryEnv(), 0, np.zeros(5), act=constant(1), spec=spec(cameras=("agentview",)), session="s",
        video_camera="agentview",
        keep_frame=lambda step: step % 2 == 0,
    )  # fmt: skip
    assert sorted(record.frames) == list(range(0, 20, 2))
