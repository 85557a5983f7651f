"""How chunks are executed: every mode against a sequence known by hand, real time with a clock of the test's own."""

import json
import math
import re
from itertools import cycle

import numpy as np
import pytest

from services.libero.benchmark import BENCHMARK
from tests.libero.harness import LightEvaluation, PolicyService
from tests.libero.invented import make_run
from tests.libero.scripted_policy import numbered
from tests.libero.test_rollout import ACTION, PROFILE, Answer, DiaryEnv, play, spec
from vla_contract import ActionChunk, PolicyInfo
from vla_evaluation import report
from vla_evaluation.actions import PolicyFault
from vla_evaluation.chunks import Chunking
from vla_evaluation.config import EvalConfig, parse_args
from vla_evaluation.plan import make_plan, specify
from vla_evaluation.rollout import run_episode
from vla_evaluation.spec import LATER, RunSpec

HOLD = 0.0
EVERY_WAY = (
    Chunking(), Chunking(3), Chunking(ensemble="newest"), Chunking(2, "mean"), Chunking(1, "exponential", -0.5),
    Chunking(realtime=12.5), Chunking(4, "exponential", 0.2, 20.0),
)  # fmt: skip


class Numbered:
    """A policy whose answers carry numbers, and a clock by which each takes as long as it is told."""

    def __init__(self, lengths, latencies_s=(0.0,)):
        self.lengths, self.latencies_s = cycle(lengths), cycle(latencies_s)
        self.now, self.asked_at = 100.0, []

    def __call__(self, observation):
        self.asked_at.append(observation.step)
        self.now += next(self.latencies_s)
        return ActionChunk(numbered(len(self.asked_at), next(self.lengths)))

    def clock(self):
        return self.now


def executed(policy, steps, **how):
    """Return the record and the numbers of what was executed, each rounded to 4 digits."""
    chunking = Chunking(**how)
    told = {"execute": chunking.execute, "ensemble": chunking.ensemble, "ensemble_weight": chunking.weight}
    record = run_episode(
        DiaryEnv(), 0, np.zeros(5), act=policy, session="s", clock=policy.clock,
        spec=spec(max_steps=steps, realtime=chunking.realtime, **told),
    )  # fmt: skip
    assert record.requests == len(policy.asked_at) and record.steps == steps
    return record, [round(float(number), 4) for number in record.actions[:, 0]]


# --- one chunk after the other, and ensembles -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "how", "asked_at", "numbers"),
    [
        ([4], {}, [0, 4], [1.00, 1.01, 1.02, 1.03, 2.00, 2.01]),
        ([4], {"execute": 2}, [0, 2, 4], [1.00, 1.01, 2.00, 2.01, 3.00, 3.01]),
        ([4], {"execute": 9}, [0, 4], [1.00, 1.01, 1.02, 1.03, 2.00, 2.01]),
        ([4], {"ensemble": "newest"}, [0, 1, 2, 3, 4, 5], [1.00, 2.00, 3.00, 4.00, 5.00, 6.00]),
        ([4], {"ensemble": "newest", "execute": 3}, [0, 3], [1.00, 1.01, 1.02, 2.00, 2.01, 2.02]),
        # the second answer has one action: after it the first one's still says what to do
        ([4, 1], {"ensemble": "newest", "execute": 2}, [0, 2, 4], [1.00, 1.01, 2.00, 1.03, 3.00, 3.01]),
        # 1.01 and 2.00; 1.02, 2.01 and 3.00; 2.02, 3.01 and 4.00; …
        ([3], {"ensemble": "mean"}, [0, 1, 2, 3, 4], [1.00, 1.505, 2.01, 3.01, 4.01]),
        ([4], {"ensemble": "mean", "execute": 2}, [0, 2, 4], [1.00, 1.01, 1.51, 1.52, 2.51, 2.52]),
        # weights 1, 1/2, 1/4 from the oldest on: (2 · 1.01 + 2.00) / 3, (4 · 1.02 + 2 · 2.01 + 3.00) / 7, …
        (
            [3], {"ensemble": "exponential", "weight": math.log(2)}, [0, 1, 2, 3],
            [1.00, 1.34, 1.5857, 2.5857],
        ),
        # nothing overlaps for a moment: the mean of one chunk is that chunk's action
        ([2, 1], {"ensemble": "mean"}, [0, 1, 2, 3], [1.00, 1.505, 3.00, 3.505]),
    ],
)  # fmt: skip
def test_executed_sequence_matches_hand_computed(lengths, how, asked_at, numbers):
    policy = Numbered(lengths)
    record, done = executed(policy, len(numbers), **how)
    assert done == pytest.approx(numbers, abs=1e-4) and policy.asked_at == asked_at
    assert record.delays is None and "realtime" not in record.summary()


@pytest.mark.parametrize(("weight", "every"), [(0.01, 1), (0.3, 1), (0.3, 3), (-0.2, 2)])
def test_exponential_weights_match_act(weight, every):
    """Against ACT's own way: a table of what every question said of every step, the oldest question's row first."""
    rng, steps, length = np.random.default_rng(0), 20, 8
    answers = rng.uniform(-1, 1, (steps, length, 7)).astype(np.float32)
    told = np.full((steps, steps + length, 7), np.nan)
    for step in range(0, steps, every):
        told[step, step : step + length] = answers[step]
    wanted = []
    for step in range(steps):
        said = told[~np.isnan(told[:, step, 0]), step]
        weights = np.exp(-weight * np.arange(len(said)))
        wanted.append((said * (weights / weights.sum())[:, None]).sum(axis=0))
    record = play(
        DiaryEnv(), lambda o: ActionChunk(answers[o.step]), max_steps=steps, execute=every, ensemble="exponential",
        ensemble_weight=weight,
    )  # fmt: skip
    np.testing.assert_allclose(record.actions, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("weight", "as_if"), [(0.0, "mean"), (-1e6, "newest"), (1e6, "oldest")])
def test_the_weight_goes_from_the_newest_over_the_mean_to_the_oldest(weight, as_if):
    _, done = executed(Numbered([3]), 6, ensemble="exponential", weight=weight)
    oldest = [1.00, 1.01, 1.02, 2.02, 3.02, 4.02]
    assert done == (oldest if as_if == "oldest" else executed(Numbered([3]), 6, ensemble=as_if)[1])


def test_only_executed_bad_actions_are_faults():
    def act(observation):
        actions = numbered(1, 4) / 10
        actions[2:, 6] = 7.0
        return Answer(actions)

    assert play(DiaryEnv(), act, max_steps=6, execute=1, ensemble="newest").steps == 6
    env = DiaryEnv()
    with pytest.raises(PolicyFault, match="7 in action 2, dimension 6"):
        play(env, act, max_steps=6, execute=1, ensemble="mean")
    assert len(env.executed) == PROFILE.wait_steps + 2


# --- real time ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "latencies_s", "how", "asked_at", "numbers", "overtaken"),
    [
        # 0.2 s at 10 steps/s: two steps go by. The chunk has enough for the time of the next question
        (
            [6], [0.2], {"execute": 4}, [0, 4, 8],
            [HOLD, HOLD, 1.02, 1.03, 1.04, 1.05, 2.02, 2.03, 2.04, 2.05, 3.02, 3.03], 6,
        ),
        # one action too few for that
        ([5], [0.2], {"execute": 4}, [0, 4], [HOLD, HOLD, 1.02, 1.03, 1.04, HOLD, 2.02, 2.03], 4),
        # asked when a chunk is used up: the robot stands still while the policy thinks
        ([4], [0.2], {}, [0, 4], [HOLD, HOLD, 1.02, 1.03, HOLD, HOLD, 2.02, 2.03], 4),
        # asked as soon as the last answer is there
        ([6], [0.2], {"execute": 1}, [0, 2, 4], [HOLD, HOLD, 1.02, 1.03, 2.02, 2.03], 6),
        # an answer in no time: as if the world had waited
        ([4], [0.0], {"execute": 2}, [0, 2], [1.00, 1.01, 2.00, 2.01], 0),
        # each its own latency: 0.04 s are no step, 0.26 s three, 0.14 s one
        (
            [6], [0.04, 0.26, 0.14], {"execute": 4}, [0, 4, 8],
            [1.00, 1.01, 1.02, 1.03, 1.04, 1.05, HOLD, 2.03, 2.04, 3.01], 4,
        ),
        # slower than its chunks are long: it never acts
        ([2], [0.3], {}, [0, 3, 6], [HOLD] * 8, 6),
        # what has arrived is averaged: 1.04 and 2.02 at step 4, 1.05 and 2.03 at step 5
        ([6], [0.2], {"execute": 2, "ensemble": "mean"}, [0, 2, 4], [HOLD, HOLD, 1.02, 1.03, 1.53, 1.54], 6),
    ],
)  # fmt: skip
def test_realtime_simulation_continues_during_inference(lengths, latencies_s, how, asked_at, numbers, overtaken):
    policy = Numbered(lengths, latencies_s)
    record, done = executed(policy, len(numbers), realtime=10.0, **how)
    assert done == pytest.approx(numbers, abs=1e-4) and policy.asked_at == asked_at
    told = record.summary()["realtime"]
    assert (told["held_steps"], told["overtaken_actions"]) == (numbers.count(HOLD), overtaken)
    thought = [latency for _, latency in zip(asked_at, cycle(latencies_s), strict=False)]
    assert told["latency_ms_mean"] == pytest.approx(1e3 * sum(thought) / len(thought), abs=1e-2)
    assert told["latency_ms_max"] == pytest.approx(1e3 * max(thought), abs=1e-2)


def test_hold_stops_the_arm_and_keeps_the_gripper():
    record, done = executed(Numbered([4], [0.2]), 6, realtime=10.0)
    assert done == [HOLD, HOLD, 1.02, 1.03, HOLD, HOLD]
    assert (record.actions[[0, 1, 4, 5], :6] == 0).all()
    assert record.actions[:, 6].tolist() == [-1, -1, 1, 1, 1, 1], "before its first action as in the wait: open"


def test_overtaken_actions_are_not_checked():
    policy = Numbered([4], [0.2])

    def act(observation):
        chunk = policy(observation)
        chunk.actions[1, 6] = np.nan
        return Answer(chunk.actions)

    def run(rate):
        return run_episode(
            DiaryEnv(), 0, np.zeros(5), act=act, session="s", clock=policy.clock, spec=spec(max_steps=6, realtime=rate)
        )

    assert run(10.0).actions[:, 0].tolist() == pytest.approx([0, 0, 1.02, 1.03, 0, 0])
    with pytest.raises(PolicyFault, match="nan in action 1, dimension 6"):
        run(5.0)


def test_success_counts_during_inference():
    policy = Numbered([8], [0.3])
    record = run_episode(
        DiaryEnv(success_after=2), 0, np.zeros(5), act=policy, session="s", clock=policy.clock, spec=spec(realtime=10.0)
    )
    assert (record.success, record.steps, record.requests) == (True, 2, 1)


# --- settings and identity ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"execute": 0}, "execute is 0; expected 1 or more"),
        ({"ensemble": "median"}, "ensemble 'median' not found; expected newest, mean, exponential"),
        (
            {"ensemble": "mean", "ensemble_weight": 0.1},
            "--ensemble-weight 0.1 requires --ensemble exponential, got mean",
        ),
        ({"ensemble_weight": 0.1}, "requires --ensemble exponential, got none"),
        ({"ensemble": "exponential", "ensemble_weight": math.inf}, "expected a finite number"),
        ({"realtime": 0.0}, "realtime is 0.0; expected more than 0"),
        ({"realtime": math.nan}, "realtime is nan; expected more than 0"),
    ],
)
def test_invalid_chunk_settings_report_value_and_choices(given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        EvalConfig(suite="libero_goal", **given)


@pytest.mark.parametrize(
    ("horizon", "execute", "advice"), [(1, None, "remove --ensemble"), (8, 8, "--execute below 8")]
)
def test_chunks_that_never_overlap_are_not_averaged(horizon, execute, advice):
    plan = make_plan(BENCHMARK, EvalConfig(suite="libero_goal", ensemble="mean", execute=execute))
    with pytest.raises(ValueError, match=f"overlapping chunks; policy 'p' .* at most {horizon} .*{advice}"):
        specify(plan, PolicyInfo("p", ACTION, horizon=horizon))


def test_flags_become_the_run_s_settings():
    def settings(*flags, profile="minivla"):
        config = parse_args(["libero_goal", "--profile", profile, *flags], BENCHMARK.suites)
        return specify(make_plan(BENCHMARK, config), PolicyInfo("p", ACTION, horizon=16)).chunking

    assert settings() == Chunking(4) and settings(profile="openvla") == Chunking()
    assert settings("--ensemble", "mean") == Chunking(1, "mean"), "every step, whatever the profile executes"
    assert settings("--ensemble", "exponential", "--execute", "8") == Chunking(8, "exponential", 0.01)
    assert settings("--realtime", "20") == Chunking(4, realtime=20.0)


@pytest.mark.parametrize("how", EVERY_WAY, ids=lambda how: how.description)
def test_settings_are_part_of_the_identity_and_defaults_leave_it_as_it_was(how):
    told = spec(execute=how.execute, ensemble=how.ensemble, ensemble_weight=how.weight, realtime=how.realtime)
    identity = told.to_json()
    assert RunSpec.from_json(identity) == told and Chunking.of(identity) == how == told.chunking
    values = {"ensemble": how.ensemble, "ensemble_weight": how.weight, "realtime": how.realtime}
    assert {name for name in LATER if name in identity} == {name for name, value in values.items() if value is not None}


def test_every_chunk_setting_has_its_own_description():
    assert len({how.description for how in EVERY_WAY}) == len(EVERY_WAY)
    assert Chunking(2, "exponential", 0.2, 20).description == (
        "queried every 2 steps, ensemble exponential (m = 0.2), real time at 20 steps/s"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"execute": 1, "ensemble": "mean"}, "an ensemble of chunks executed"), ({"realtime": 20.0}, "in real time")],
)
def test_chunk_settings_are_in_the_report_without_published_figures(tmp_path, changes, reason):
    directory, store = make_run(tmp_path, trials=1, **changes)
    told = {"held_steps": 3, "overtaken_actions": 5, "latency_ms_mean": 40.0, "latency_ms_max": 90.5}
    if "realtime" in changes:
        sql = "UPDATE episodes SET result = json_set(result, '$.realtime', json(?))"
        store.db.execute(sql, (json.dumps(told),))
    summary = report.build(directory, store)
    assert reason in summary.comparability_problem and summary.chunks in (directory / "report.html").read_text()
    written = json.loads((directory / "summary.json").read_text())
    assert written["chunks"] == summary.chunks
    if "realtime" in changes:
        assert written["realtime"] == {**told, "held_steps": 30, "overtaken_actions": 50}
        assert "40 ms, 90 ms" in (directory / "report.html").read_text()


# --- a whole run --------------------------------------------------------------------------------------------------


def test_a_run_in_real_time_measures_the_policy_and_is_not_resumed_without(tmp_path):
    """The latency is the machine's own; only what follows from its definition is asserted."""
    flags = ("--tasks", "1", "--trials", "2", "--max-steps", "8", "--video", "none")
    with PolicyService(tmp_path / "policy.txt", "--chunk", "4", "--delay-ms", "120") as policy:
        with LightEvaluation(tmp_path / "runs", "run", *flags, "--policy-url", policy.url, "--realtime", "20") as run:
            said = run.end()
            told = [json.loads(text)["realtime"] for (text,) in run.peek("SELECT result FROM episodes")]
        with LightEvaluation(tmp_path / "runs", "run", *flags, "--policy-url", policy.url) as again:
            assert "realtime: 20.0 → not recorded" in again.end(2)
    assert "1 worker," in said and "chunks: queried when a chunk is used up, real time at 20 steps/s" in said
    assert len(told) == 2, "one worker by default, although there are two episodes"
    assert all(one["latency_ms_mean"] >= 120 and one["held_steps"] >= 2 <= one["overtaken_actions"] for one in told)
    written = json.loads((tmp_path / "runs" / "run" / "summary.json").read_text())
    assert written["realtime"]["held_steps"] == sum(one["held_steps"] for one in told)
    assert written["provenance"]["realtime"] == 20.0
