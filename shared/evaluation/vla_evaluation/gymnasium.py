"""Any Gymnasium environment as a benchmark: `GymnasiumBenchmark` is its table, `GymnasiumEnv` runs its episodes.

Episode k starts from `reset(seed=seed + k)`, whichever episodes ran before and however many workers there are. The
key `success` of `info` says whether a task is solved. Gymnasium cannot put an environment into a state, so videos
and data sets of earlier episodes are rendered by executing their actions again; it has to be deterministic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from vla_contract.protocol.parts import Part, format_parts, total
from vla_evaluation.benchmark import Assets, EnvironmentRefused
from vla_evaluation.pictures.transforms import resize_lanczos3
from vla_evaluation.pictures.video import stride
from vla_evaluation.profiles import Profile

KIND = "package"  # of the assets: scenes come with the environment's package
SEEDS = 2**32  # numpy's RandomState takes smaller ones


@dataclass(frozen=True)
class GymnasiumTask:
    """A task of a suite.

    id      as `gymnasium.make` takes it, with the module that registers it: "gym_pusht:gym_pusht/PushT-v0"
    kwargs  of `gymnasium.make`; with `num_envs`, of `make_vec`
    """

    name: str
    instruction: str
    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    index: int = 0  # in its suite


@dataclass(frozen=True, kw_only=True)
class GymnasiumBenchmark:
    """The table of an environment; `vla_evaluation.benchmark.Benchmark` documents the other members.

    tasks_of     suite → its tasks
    horizon      steps until an episode fails; the environment's own limit is switched off
    images       camera → path of its image in the observation: "pixels/top"
    state_key    path of the robot's state in the observation; empty without `state`
    success      key of `info` that is true once the task is solved
    seed         episode k is reset with seed + k
    environment  directory in images/ whose lock pins `packages`
    per_task     episodes per task of the protocol
    available    episodes that `--trials` can request
    opengl       whether OpenGL renders the images
    """

    name: str
    module: str
    tasks_of: Mapping[str, Sequence[GymnasiumTask]]
    horizon: int
    images: Mapping[str, str]
    action: tuple[Part, ...]
    state: tuple[Part, ...] = ()
    state_key: str = ""
    control_hz: float
    packages: tuple[str, ...]
    environment: str
    success: str = "is_success"
    seed: int = 0
    per_task: int = 50
    available: int = 500
    opengl: bool = True
    worker_gb: float = 1.0
    profile: str = "gymnasium"
    source: str = ""
    uncounted: tuple[str, ...] = ("vla_common.driver",)
    requires: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({"gymnasium": "1"}))

    @property
    def suites(self) -> tuple[str, ...]:
        return tuple(self.tasks_of)

    @property
    def cameras(self) -> tuple[str, ...]:
        return tuple(self.images)

    @property
    def video_camera(self) -> str:
        return self.cameras[0]

    @property
    def profiles(self) -> dict[str, Profile]:
        """The one protocol: images as the environment renders them."""
        steps = dict.fromkeys(self.tasks_of, self.horizon)
        return {
            self.profile: Profile(
                name=self.profile, source=self.source or self.module, max_steps=steps, trials=self.per_task,
                env_seed=self.seed, camera_size=0, image_size=0, upright=True,
            )
        }  # fmt: skip

    def tasks(self, suite: str) -> Sequence[GymnasiumTask]:
        """Return a suite's tasks."""
        return self.tasks_of[suite]

    def init_states(self, task: GymnasiumTask) -> np.ndarray:
        """Return [available, 1]: what each episode adds to the run's seed."""
        return np.arange(self.available)[:, None]

    def assets(self, requested: str | None, volume: Path) -> Assets:
        """Return the directories of the modules that register the environments. ValueError if one is not installed."""
        modules = sorted({task.id.partition(":")[0] for tasks in self.tasks_of.values() for task in tasks})
        digest, directories = hashlib.sha256(), []
        for module in modules:  # not imported
            spec = find_spec(module) if find_spec(module.partition(".")[0]) else None
            if spec is None or spec.origin is None:
                raise ValueError(f"{module} is not installed; run ./lab env with the name of its environment")
            directory = Path(spec.origin).parent
            directories.append(directory)
            for path in sorted(path for path in directory.rglob("*") if path.is_file() and path.suffix != ".pyc"):
                digest.update(f"{path.relative_to(directory)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
        if requested not in (None, KIND, str(directories[0])):
            raise ValueError(f"--assets {requested!r}: scenes of {self.name} come with its package; remove --assets")
        return Assets(KIND, directories[0], digest.hexdigest()[:16])

    def renderer(self, render: str) -> str:
        """Return the name and version of the OpenGL driver."""
        if not self.opengl:
            return "no OpenGL"
        from vla_common import driver

        return driver.ask(render)

    def worker_variables(self, number: int) -> dict[str, str]:
        """Return the variables that select a worker's GPU; workers are spread over the GPUs in turn."""
        if not self.opengl:
            return {}
        from vla_common import gl

        return gl.spread(number)

    def make_env(
        self, assets: Path, work: Path, cameras: tuple[str, ...], camera_size: int, render: str
    ) -> GymnasiumEnv:
        """Select this process's renderer and return a `GymnasiumEnv`."""
        if self.opengl:
            from vla_common import gl

            gl.bind(gl.choose("auto" if render == "none" else render))  # observations have images in any case
        return GymnasiumEnv(self, camera_size)


class GymnasiumEnv:
    """Runs one environment; `vla_evaluation.benchmark.Environment` documents the members.

    camera_size: 0 returns images as the environment renders them, another number resizes them to its square. Of a
    vector environment, the first slot is used.
    """

    def __init__(self, table: GymnasiumBenchmark, camera_size: int = 0):
        self.table, self.camera_size = table, camera_size
        self.task: GymnasiumTask | None = None
        self.env: Any = None
        self.id = ""  # of the environment
        self.width, self.stride = total(table.action), stride(table.control_hz)
        self._seed = self._reset_seed = 0
        self._reports_success = False

    @property
    def instruction(self) -> str:
        return self._require_task().instruction

    def load_task(self, task: GymnasiumTask, seed: int = 0) -> None:
        """Make the task's environment unless it is loaded. EnvironmentRefused if it cannot be made."""
        self._seed = seed
        if self.task == task:
            return
        import gymnasium

        self.close()
        try:
            if "num_envs" in task.kwargs:
                self.env = gymnasium.make_vec(task.id, **task.kwargs)
            else:  # only the run's step limit ends an episode
                self.env = gymnasium.make(task.id, disable_env_checker=True, max_episode_steps=-1, **task.kwargs)
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            raise EnvironmentRefused(f"{task.id} cannot be made: {type(error).__name__}: {error}") from error
        self.task, self.id = task, task.id

    def start(self, episode: int) -> np.ndarray:
        """Return what episode `episode` adds to the seed of `load_task`."""
        return np.array([episode])

    def reset(self, episode: int, init_state: np.ndarray) -> None:
        """Start an episode: `init_state` [1] is added to the seed of `load_task`.

        EnvironmentRefused if observation or action are not what the table says.
        """
        self._require_task()
        self._reset_seed = (self._seed + int(init_state[0])) % SEEDS
        self._executed: list[np.ndarray] = []  # actions of this episode
        self._images: dict[int, dict[str, Any]] = {}  # step → camera → image
        self._restart()
        table, has = self.table, ", ".join(path for path, _ in leaves(self._observation))
        for camera, image in self._images[0].items():
            if image is None:
                raise EnvironmentRefused(
                    f"{self.id} has no observation {table.images[camera]!r} for camera {camera}; it has {has}"
                )
            if not callable(image) and (image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] != 3):
                raise EnvironmentRefused(
                    f"{self.id}: camera {camera} is {image.dtype} {list(image.shape)}; expected uint8 [H, W, 3]"
                )
        if table.state and value_at(self._observation, table.state_key) is None:
            raise EnvironmentRefused(f"{self.id} has no observation {table.state_key!r} for the state; it has {has}")
        space = getattr(self.env, "single_action_space", self.env.action_space)
        sizes = {"action": (int(np.prod(space.shape)), table.action), "state": (self.state().size, table.state)}
        for name, (size, parts) in sizes.items():
            if size != total(parts):
                raise EnvironmentRefused(
                    f"{self.id} has {size} numbers of {name}; its table has {total(parts)}: {format_parts(parts)}"
                )

    def step(self, action: np.ndarray) -> bool:
        """Execute one action; return whether `info` reports success. EnvironmentRefused if it never does."""
        self._rerun(len(self._executed), ())
        action = np.array(action, np.float32)
        info, terminated, truncated = self._advance(action)
        self._executed.append(action)
        success = read_success(info, self.table.success)
        self._reports_success |= success is not None
        self.ended = terminated or truncated
        if not self._reports_success and (self.ended or self._steps == self.table.horizon):
            raise EnvironmentRefused(
                f"{self.id} reports no {self.table.success!r} in info, so no episode could succeed; its keys are "
                f"{', '.join(info) or 'none'}. Name the right one as `success` of the table"
            )
        return bool(success)

    def render(self, camera: str) -> np.ndarray:
        """Return the image in the observation: uint8 [H, W, 3], or [size, size, 3]; bottom row first."""
        image = self._images[self._shown][camera]
        if callable(image):
            image = self._images[self._shown][camera] = image()
        if self.camera_size and image.shape[:2] != (self.camera_size,) * 2:
            image = resize_lanczos3(image, self.camera_size)
        return np.ascontiguousarray(image[::-1])

    def state(self) -> np.ndarray:
        """Return the robot's state in the observation: float32 [n]."""
        if not self.table.state:
            return np.zeros(0, np.float32)
        return np.ravel(value_at(self._observation, self.table.state_key)).astype(np.float32)

    def sim_state(self) -> np.ndarray:
        """Return the number of steps, the last actions up to a video's previous frame, and all observed numbers."""
        recent = np.zeros((self.stride, self.width))
        if last := self._executed[-self.stride :]:
            recent[-len(last) :] = last
        return np.concatenate([[self._steps], recent.ravel(), self._numbers()])

    def restore(self, sim_state: np.ndarray) -> None:
        """Render `sim_state` from now on, by executing its actions again where the image is not stored."""
        end = 1 + self.stride * self.width
        self._show(int(sim_state[0]), sim_state[1:end].reshape(self.stride, self.width))
        if self._shown == self._steps and not np.array_equal(self._numbers(), sim_state[end:], equal_nan=True):
            raise ValueError(
                f"{self.id} is not deterministic: after the same {self._steps} actions it differs from the "
                "recording, which cannot be rendered"
            )

    def view(self) -> np.ndarray:
        """Return the number of steps and the last action."""
        last = self._executed[-1] if self._executed else np.zeros(self.width)
        return np.concatenate([[self._steps], last])

    def show(self, view: np.ndarray) -> None:
        """Render `view` from now on; views have to be shown in their order."""
        self._show(int(view[0]), view[None, 1:])

    def fixture_poses(self) -> dict[str, np.ndarray]:
        return {}

    def privileged(self, first: bool) -> dict[str, Any]:
        """Return nothing: Gymnasium has no true state."""
        return {}

    def close(self) -> None:
        """Free the environment."""
        if self.env is not None:
            self.env.close()
        self.env = self.task = None

    # --- the environment's own episode ------------------------------------------------------------------------

    def _restart(self) -> None:
        observation, info = self.env.reset(seed=self._reset_seed)
        self._steps, self.ended = 0, False
        self._reports_success = read_success(info, self.table.success) is not None
        values = {key: value for key, value in info.items() if not isinstance(value, Mapping)}
        self._info_keys = sorted(key for key, value in values.items() if np.asarray(value).dtype.kind in "biuf")
        self._observe(first_slot(observation, self.slots), info)

    def _advance(self, action: np.ndarray) -> tuple[Mapping[str, Any], bool, bool]:
        """Execute one action; return info, terminated and truncated."""
        batch = action if self.slots is None else np.repeat(action[None], self.slots, axis=0)
        observation, _, terminated, truncated, info = self.env.step(batch)
        observation = final_observation(first_slot(observation, self.slots), info)
        self._steps += 1
        self._observe(observation, info)
        return info, bool(np.ravel(terminated)[0]), bool(np.ravel(truncated)[0])

    def _observe(self, observation: Any, info: Mapping[str, Any]) -> None:
        self._observation, self._info, previous = observation, info, self._steps - 1
        stored = self._images.get(previous, {}).values()
        if previous % self.stride or any(map(callable, stored)):
            self._images.pop(previous, None)
        # Copied: an environment may draw its next image into the same array.
        images = {camera: value_at(observation, path) for camera, path in self.table.images.items()}
        self._images[self._steps] = {
            camera: image if image is None or callable(image) else np.array(image) for camera, image in images.items()
        }
        self._shown = self._steps

    def _show(self, step: int, recent: Sequence[np.ndarray]) -> None:
        if step not in self._images:
            self._rerun(step, recent)
        self._shown = step

    def _rerun(self, step: int, recent: Sequence[np.ndarray]) -> None:
        """Bring the environment to `step` of its episode, with the last actions before it as `recent` [T, n]."""
        if step < self._steps:
            self._restart()
        missing = step - self._steps
        if missing > len(recent):
            recent = self._executed[:step]
        if missing > len(recent):
            raise ValueError(
                f"step {step} of {self.id} cannot be rendered: the actions since step {self._steps} are missing. "
                "Record without --drop-noops"
            )
        for action in recent[len(recent) - missing :]:
            self._advance(np.asarray(action, np.float32))

    @property
    def slots(self) -> int | None:
        """The number of slots of a vector environment, None for a single one."""
        return getattr(self.env, "num_envs", None)

    def _numbers(self) -> np.ndarray:
        """Return every number of the observation and of the keys that `info` had after reset: float64 [k]."""
        images = set(self.table.images.values())
        observed = [value for path, value in leaves(self._observation) if path not in images]
        reported = [self._info.get(key, np.nan) for key in self._info_keys]
        return np.concatenate([np.zeros(0), *(np.ravel(value).astype(np.float64) for value in (*observed, *reported))])

    def _require_task(self) -> GymnasiumTask:
        if self.task is None:
            raise RuntimeError("no task is loaded; call load_task() first")
        return self.task


# --- reading what Gymnasium returns -----------------------------------------------------------------------------


def read_success(info: Mapping[str, Any], key: str, slot: int = 0) -> bool | None:
    """Return the success of a slot after a step; None if `info` does not report it.

    A vector environment that has reset a slot already reports its end in `final_info`: a dictionary of arrays with
    masks since Gymnasium 1.0, before an array with one dictionary or None per slot.
    """
    final = info.get("final_info")
    if final is not None and not isinstance(final, Mapping):
        final = final[slot]
    elif final is not None and not masked_in(info, "final_info", slot):
        final = None
    for source in (final, info):
        if source is not None and key in source and masked_in(source, key, slot):
            return bool(np.ravel(source[key])[slot if np.size(source[key]) > 1 else 0])
    return None


def masked_in(info: Mapping[str, Any], key: str, slot: int) -> bool:
    """Return whether the mask `_key` of a vector environment, if there is one, has the slot."""
    return f"_{key}" not in info or bool(np.ravel(info[f"_{key}"])[slot])


def final_observation(observation: Any, info: Mapping[str, Any]) -> Any:
    """Return the first slot's last observation of an episode after which the environment has reset itself."""
    for key in ("final_obs", "final_observation"):
        final = info.get(key)
        if final is not None and masked_in(info, key, 0):
            last = first_slot(final, 1) if isinstance(final, Mapping) else final[0]
            return observation if last is None else last
    return observation


def first_slot(observation: Any, slots: int | None) -> Any:
    """Return the first slot's observation of a vector environment."""
    if slots is None:
        return observation
    if isinstance(observation, Mapping):
        return {key: first_slot(value, slots) for key, value in observation.items() if not key.startswith("_")}
    return observation[0]


def value_at(observation: Any, path: str) -> Any:
    """Return the value at "key/key" of nested dictionaries, None if absent; of an empty path, all of them."""
    for key in filter(None, path.split("/")):
        observation = observation.get(key) if isinstance(observation, Mapping) else None
    return observation


def leaves(observation: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of every value of nested dictionaries, in the order of their names."""
    if isinstance(observation, Mapping):
        for key in sorted(observation):
            yield from leaves(observation[key], f"{path}/{key}" if path else key)
    else:
        yield path, observation
