"""The interface between evaluator and benchmark: `Benchmark`, and the `Environment` that it makes.

A benchmark is a directory under services/. Its benchmark.py has an object with the members of `Benchmark`,
called BENCHMARK; its __main__.py is the job that compose.yaml runs:

    entrypoint.run(main, BENCHMARK, sys.argv[1:])  # main of vla_evaluation.cli

The evaluator's own process reads only the data. Every worker process imports the benchmark's module by name and calls
`make_env` once. Settings that must precede the import of a simulator belong there; the module itself must not import
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from vla_contract.protocol.parts import Part
from vla_evaluation.profiles import Profile


class Task(Protocol):
    """One task of a suite; `index` is its position there, from 0. Other members are the benchmark's own.

    Optional: `kind`, a word for each kind of task, and `level`, its difficulty from 1 on; reports then have a rate per
    kind and per level.
    """

    index: int
    name: str
    instruction: str


@dataclass(frozen=True)
class Assets:
    """The files that scenes are built from: what they are, where, and a digest that changes with their content.

    unlike  why results on them are not comparable with published figures; empty if they are
    notice  shown at the top of the report
    advice  printed before and after a run
    """

    kind: str
    path: Path
    digest: str
    unlike: str = ""
    notice: str = ""
    advice: str = ""


class EnvironmentRefused(ValueError):
    """An environment that does not fit its benchmark; the run stops with this message."""


class Environment(Protocol):
    """One simulated scene after another, in the process that made it. States and images must follow from the task,
    the seed, the episode and the actions alone, whichever episodes this process ran before: workers share a run.

    Optional: `sense(camera, image)` returns the policy's version of an image that `render` drew in this step, for
    a task with a disturbed sensor; videos show the rendered one. `ended`, true once an episode cannot go on although
    its task is not solved.
    """

    instruction: str  # of the loaded task

    def load_task(self, task: Any, seed: int, **scene: Any) -> None:
        """Build the task's scene unless it is loaded already, and seed its episodes; with the benchmark's own robot and
        once for all, unless a profile differs (`scene`, of `EpisodeProtocol.scene`; a benchmark without such
        profiles takes none).
        """

    def reset(self, episode: int, init_state: np.ndarray) -> None:
        """Start episode `episode` (from 0) of the task at `init_state`, of `init_states` or `start`."""

    def start(self, episode: int) -> np.ndarray:
        """Return a start state that the benchmark samples for `episode` by the seed of `load_task`: for demonstrations,
        and none of the `init_states` of an evaluation.
        """

    def step(self, action: np.ndarray) -> bool:
        """Execute one action, float32 [n] as in `Benchmark.action`; return whether the task is solved now."""

    def render(self, camera: str) -> np.ndarray:
        """Return a camera's image: uint8 [camera_size, camera_size, 3], bottom row first, as OpenGL renders; of size 0
        in the benchmark's own size.
        """

    def state(self) -> np.ndarray:
        """Return the robot's state for a policy: float32 [n] as in `Benchmark.state`."""

    def sim_state(self) -> np.ndarray:
        """Return the simulator's whole state: float64, of one length within a task."""

    def restore(self, sim_state: np.ndarray) -> None:
        """Pose the scene as it was at `sim_state` of the episode that was reset last, to render it afterwards."""

    def view(self) -> np.ndarray:
        """Return the state that images depend on, cameras aside: float64, of one length within a task."""

    def show(self, view: np.ndarray) -> None:
        """Pose the scene of the episode that was reset last so that `render` returns the image of `view`."""

    def fixture_poses(self) -> dict[str, np.ndarray]:
        """Return by name the poses that `reset` set and `sim_state` does not have; empty if there are none."""

    def privileged(self, first: bool) -> dict[str, Any]:
        """Return the true state for policies that request it, as a plain tree; `first`: with what never changes."""


class Benchmark(Protocol):
    """A benchmark. Everything but `make_env` must be cheap: the evaluator uses it before it starts anything.

    Eight optional members: `variations`, what `load_task(vary=…)` can make random, for `record --vary`;
    `base_instruction(task)`, the instruction of the task that `task` disturbs, for
    `--instructions base`; `wide`, a mapping from a suite to the one whose starts are spread over the whole scene, for
    `record --starts wide`; `bases`, a mapping from a suite to the one that it is derived from, whose step limits,
    statistics and checkpoints hold for it; `trials`, a mapping from a suite to its own protocol's episodes per task;
    `missing_assets(tasks, assets)`, which returns why these tasks cannot be built from these assets and what to do, or
    an empty text; `requires`, a mapping from some of `packages` to the beginning of the versions that its
    code runs with ("1.4"), others being refused before a run; `environment`, the directory in images/ whose lock pins
    its packages, if it is not the one with the name of its own.
    """

    name: str  # for people; part of a run's identity
    module: str  # the module that has it as BENCHMARK: `module = __name__`
    suites: tuple[str, ...]
    action: tuple[Part, ...]  # what `step` executes
    state: tuple[Part, ...]  # what `state` returns; empty: nothing
    control_hz: float  # steps per simulated second
    cameras: tuple[str, ...]  # of `render`
    video_camera: str  # of videos
    profiles: Mapping[str, Profile]  # by name; the first is the default
    packages: tuple[str, ...]  # distributions whose versions states and images depend on
    worker_gb: float  # memory of a worker that renders
    uncounted: tuple[str, ...]  # modules that `module` imports but no worker does: a change in them is no drift

    def tasks(self, suite: str) -> Sequence[Task]:
        """Return the tasks of one of `suites`, in order."""

    def init_states(self, task: Any) -> np.ndarray:
        """Return the task's start states [episodes, n]; episode k starts from row k."""

    def assets(self, requested: str | None, volume: Path) -> Assets:
        """Return the assets of --assets, else the first on the volume or elsewhere.

        ValueError, with what to do, if there are none or `requested` is invalid.
        """

    def renderer(self, render: str) -> str:
        """Return the renderer of `render` (auto, cpu, gpu), with its version; ValueError if there is none."""

    def worker_variables(self, number: int) -> dict[str, str]:
        """Return environment variables for worker `number` (from 0), such as the GPU of its turn."""

    def make_env(
        self, assets: Path, work: Path, cameras: tuple[str, ...], camera_size: int, render: str
    ) -> Environment:
        """Return this process's environment, called before any simulator was imported; a second call, for another
        size, has the same assets and `render`.

        `work` is a directory of the run to write into, shared by its workers; a name that begins with a dot and ends in
        .partial is removed after a kill. `render` is auto, cpu, gpu, or none where no image will be rendered.
        """


def base_of(benchmark: Benchmark, suite: str) -> str:
    """Return the suite that `suite` is derived from, itself if it is not."""
    return getattr(benchmark, "bases", {}).get(suite, suite)


def kind_of(task: Task) -> str:
    """Return the kind of a task; empty if its benchmark has none."""
    return getattr(task, "kind", "")


def level_of(task: Task) -> int:
    """Return the difficulty of a task; 0 if its benchmark has none, or not for this one."""
    return getattr(task, "level", 0)


def trials_of(benchmark: Benchmark, suite: str, profile: Profile) -> int:
    """Return how many episodes of a task a whole run of the suite has."""
    return getattr(benchmark, "trials", {}).get(suite, profile.trials)


def sensed(env: Environment, camera: str, image: np.ndarray) -> np.ndarray:
    """Return the policy's version of a rendered image: uint8 [size, size, 3], bottom row first."""
    sense = getattr(env, "sense", None)
    return sense(camera, image) if sense else image


def episode_has_ended(env: Environment) -> bool:
    """Return whether the episode cannot go on although its task is not solved."""
    return getattr(env, "ended", False)


def require_assets(benchmark: Benchmark, tasks: Sequence[Task], assets: Assets) -> None:
    """Raise ValueError, with what to do, if a task cannot be built from these assets."""
    find_missing = getattr(benchmark, "missing_assets", None)
    if reason := find_missing(tasks, assets) if find_missing else "":
        raise ValueError(reason)


def load(module: str) -> Benchmark:
    """Return the benchmark of a module."""
    return import_module(module).BENCHMARK
