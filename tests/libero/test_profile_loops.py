"""Each profile's episodes against the loop of its source, step by step on the same recorded observations.

The loops below say again, in their order and arithmetic, what the files that a profile names do between the simulator
and the policy. What the policy is shown, what is executed, when an episode ends and how the environment is seeded has
to be the same. `test_images_reference.py` holds OpenVLA's pictures against TensorFlow.
"""

import math

import numpy as np
import pytest
from PIL import Image

from services.libero.benchmark import BENCHMARK
from services.libero.profiles import PROFILES, TWO_CAMERAS
from vla_contract import ActionChunk, PolicyInfo
from vla_contract.protocol.parts import GRIPPER_CLOSES, GRIPPER_OPENS, HAND_STATE, OSC_POSE
from vla_evaluation.config import EvalConfig
from vla_evaluation.pictures.transforms import centre_crop, jpeg_round_trip, resize_lanczos3
from vla_evaluation.plan import make_plan, specify
from vla_evaluation.rollout import run_episode

SUITE, SENTENCE, FRAMES = "libero_spatial", "Put the Bowl away", 5
WAIT = [0, 0, 0, 0, 0, 0, -1]


class World:
    """A recording of `size`² pictures and hands, behind LIBERO's interface and behind ours; done at step `solved`."""

    instruction = SENTENCE

    def __init__(self, size: int, solved: int | None = None):
        draw = np.random.default_rng(size)
        self.pictures = {camera: draw.integers(0, 256, (FRAMES, size, size, 3), np.uint8) for camera in TWO_CAMERAS}
        quats = draw.normal(size=(FRAMES, 4))
        self.hands = {"pos": draw.normal(size=(FRAMES, 3)), "quat": quats / np.linalg.norm(quats, axis=1)[:, None]}
        self.fingers, self.solved, self.now = draw.normal(size=(FRAMES, 2)), solved, 0
        self.executed, self.seeds, self.unseeded = [], [], 0

    def _move(self, action) -> bool:
        self.executed.append(np.asarray(action, np.float32))
        self.now += 1
        return self.solved is not None and self.now >= self.solved

    def _begin(self) -> None:
        self.now, self.executed = 0, []

    def _hand(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        at = self.now % FRAMES
        return self.hands["pos"][at], self.hands["quat"][at].copy(), self.fingers[at]


class Theirs(World):
    """As LIBERO's OffScreenRenderEnv."""

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def reset(self) -> dict:
        self.unseeded += not self.seeds
        self._begin()
        return self._see()

    def set_init_state(self, state) -> dict:
        return self._see()

    def step(self, action) -> tuple[dict, bool]:
        done = self._move(action)
        return self._see(), done

    def _see(self) -> dict:
        pos, quat, fingers = self._hand()
        shown = {f"{camera}_image": images[self.now % FRAMES] for camera, images in self.pictures.items()}
        return {**shown, "robot0_eef_pos": pos, "robot0_eef_quat": quat, "robot0_gripper_qpos": fingers}


class Ours(World):
    """As `vla_evaluation.benchmark.Environment`."""

    def reset(self, episode: int, init_state) -> None:
        self._begin()

    def step(self, action) -> bool:
        return self._move(action)

    def render(self, camera: str) -> np.ndarray:
        return self.pictures[camera][self.now % FRAMES]

    def state(self) -> np.ndarray:
        pos, quat, fingers = self._hand()
        return np.concatenate([pos, axis_angle(quat), fingers]).astype(np.float32)

    def fixture_poses(self) -> dict:
        return {}

    def sim_state(self) -> np.ndarray:
        return np.array([float(self.now)])


class Model:
    """Answers chunks that follow from how often it was asked; keeps what it was shown."""

    def __init__(self, horizon: int, opens: bool):
        self.horizon, self.opens, self.shown = horizon, opens, []

    def __call__(self, pictures, state, prompt) -> np.ndarray:
        draw = np.random.default_rng(len(self.shown))
        self.shown.append((*(np.array(image) for image in pictures), np.asarray(state, np.float32), prompt))
        actions = draw.uniform(-1.0, 1.0, (self.horizon, 7))
        actions[:, 6] = draw.choice([0.0, 0.2, 0.5, 0.9, 1.0], self.horizon) if self.opens else actions[:, 6]
        return actions.astype(np.float32)


def axis_angle(quat: np.ndarray) -> np.ndarray:
    """robosuite's quat2axisangle, which all of them have a copy of."""
    quat[3] = min(max(quat[3], -1.0), 1.0)
    sine = np.sqrt(1.0 - quat[3] * quat[3])
    return np.zeros(3) if math.isclose(sine, 0.0) else quat[:3] * 2.0 * math.acos(quat[3]) / sine


def hand(seen: dict) -> np.ndarray:
    parts = (seen["robot0_eef_pos"], axis_angle(seen["robot0_eef_quat"].copy()), seen["robot0_gripper_qpos"])
    return np.concatenate(parts)


def turned(seen: dict) -> list[np.ndarray]:
    return [seen[f"{camera}_image"][::-1, ::-1] for camera in TWO_CAMERAS]


def seeded_once(world: Theirs, episode: int, seed: int) -> dict:
    """What openvla's, openpi's and GR00T's scripts do before an episode; those before it have passed."""
    world.seed(seed)
    for number in range(episode + 1):
        world.reset()
        seen = world.set_init_state(number)
    return seen


def openvla_oft(world: Theirs, episode: int, model: Model, limit: int) -> bool:
    seen, queue, t = seeded_once(world, episode, 0), [], 0
    while t < limit + 10:
        if t < 10:
            seen, _ = world.step(WAIT)
            t += 1
            continue
        if not queue:
            resized = [resize_lanczos3(jpeg_round_trip(np.ascontiguousarray(one)), 224) for one in turned(seen)]
            queue = list(model([centre_crop(one, 0.9) for one in resized], hand(seen), SENTENCE))[:8]
        action = queue.pop(0).copy()
        action[-1] = np.sign(2 * (action[-1] - 0.0) / (1.0 - 0.0) - 1)
        action[-1] *= -1.0
        seen, done = world.step(action)
        if done:
            return True
        t += 1
    return False


def groot(world: Theirs, episode: int, model: Model, limit: int) -> bool:
    seen, t = seeded_once(world, episode, 0), 0
    while t < limit + 10:
        if t < 10:
            seen, _ = world.step(WAIT)
            t += 1
            continue
        action = model(turned(seen), hand(seen), SENTENCE)[0].copy()
        action[-1] = np.sign(1 - 2 * action[-1])
        seen, done = world.step(action)
        if done:
            return True
        t += 1
    return False


def openpi(world: Theirs, episode: int, model: Model, limit: int) -> bool:
    seen, plan, t = seeded_once(world, episode, 7), [], 0
    while t < limit + 10:
        if t < 10:
            seen, _ = world.step(WAIT)
            t += 1
            continue
        if not plan:
            images = [Image.fromarray(one).resize((224, 224), Image.Resampling.BILINEAR) for one in turned(seen)]
            plan = list(model(images, hand(seen), SENTENCE)[:5])
        seen, done = world.step(plan.pop(0))
        if done:
            return True
        t += 1
    return False


def lerobot(world: Theirs, episode: int, model: Model, limit: int) -> bool:
    world.reset()  # LiberoEnv._ensure_env
    for number in range(episode + 1):
        world.seed(1000 + number)
        world.reset()
        seen = world.set_init_state(number)
    for _ in range(10):
        seen, _ = world.step(WAIT)
    queue, step, done = [], 0, False
    while not done and step < limit:
        queue = queue or list(model(turned(seen), hand(seen), SENTENCE))  # n_action_steps of select_action
        seen, done = world.step(queue.pop(0))
        step += 1
    return done


def vla_eval(world: Theirs, episode: int, model: Model, limit: int) -> bool:
    seen = seeded_once(world, episode, 7)
    for _ in range(10):
        seen, _ = world.step(WAIT)
    for _ in range(limit):
        action = model(turned(seen), hand(seen), SENTENCE)[0].copy()  # a server answers one action
        seen, done = world.step(action)
        if done:
            return True
    return False


LOOPS = {
    "openvla-oft": (openvla_oft, 8, 220),
    "groot-n1.5": (groot, 16, 220),
    "openpi": (openpi, 10, 220),
    "lerobot": (lerobot, 50, 280),
    **{f"lerobot-{size}": (lerobot, 10, 280) for size in (64, 128, 256)},
    "vla-eval": (vla_eval, 1, 220),
}


def info_of(name: str, horizon: int) -> PolicyInfo:
    profile = PROFILES[name]
    size = (profile.image_size,) * 2
    return PolicyInfo(
        "p", profile.action, state=HAND_STATE, cameras=TWO_CAMERAS, image_hw=size, horizon=horizon, profile=name
    )


@pytest.mark.parametrize("solved", [None, 33])
@pytest.mark.parametrize("name", LOOPS)
def test_an_episode_is_that_of_the_source(name, solved):
    loop, horizon, limit = LOOPS[name]
    profile = PROFILES[name]
    opens = profile.action == (*OSC_POSE, GRIPPER_OPENS)
    assert opens or profile.action == (*OSC_POSE, GRIPPER_CLOSES)
    theirs, ours = Theirs(profile.camera_size, solved), Ours(profile.camera_size, solved)
    asked, told = Model(horizon, opens), Model(horizon, opens)
    done = loop(theirs, 2, asked, limit)

    def act(observation) -> ActionChunk:
        images = [observation.images[camera] for camera in TWO_CAMERAS]
        return ActionChunk(told(images, observation.state, observation.instruction))

    plan = make_plan(BENCHMARK, EvalConfig(SUITE, profile=name))
    record = run_episode(ours, 2, np.zeros(1), act=act, spec=specify(plan, info_of(name, horizon)), session="s")
    assert record.success == done == (solved is not None)
    assert np.array_equal(np.array(ours.executed), np.array(theirs.executed))
    assert record.steps == len(theirs.executed) - 10 == (limit if solved is None else solved - 10)
    assert len(asked.shown) == len(told.shown)
    for expected, got in zip(asked.shown, told.shown, strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(expected, got, strict=True))
    assert theirs.seeds == [profile.env_seed + number for number in range(3 if profile.seed_each else 1)]
    assert theirs.unseeded == profile.extra_resets
