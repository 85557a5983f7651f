"""What evaluation knows of a benchmark: its tasks and conventions as data, and the environment that it makes.

A benchmark is one folder services/<name>/. Its module benchmark.py holds an object with the members of `Benchmark`,
called BENCHMARK; its __main__.py is the job that compose.yaml runs:

    endings.run(main, BENCHMARK, sys.argv[1:])  # main of vla_evaluation.evaluate

The evaluator's own process uses the data alone. Every worker process imports the benchmark's module by its name and
calls `make_env` once, so whatever must be settled before a simulator is imported is settled in there, and the module
itself may import no simulator.
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
    """One task of a suite; `index` is its place there, from 0. What else it has is the benchmark's own affair.

    A suite whose tasks are of several kinds says so in `kind`, a word for each, and one that grades them in `level`,
    from 1 on: reports then have a rate per kind and per level.
    """

    index: int
    name: str
    instruction: str


@dataclass(frozen=True)
class Assets:
    """The files that scenes are built from: what they are, where, and a digest that changes with their content.

    `unlike` says why results on them must not stand beside published figures, empty where they may; `notice` stands
    at the top of the report, and `advice` is told before and after a run on them.
    """

    kind: str
    path: Path
    digest: str
    unlike: str = ""
    notice: str = ""
    advice: str = ""


class Environment(Protocol):
    """One simulated scene after another, in the process that made it. States and pictures must follow from the task,
    the seed, the episode and the actions alone, whichever episodes this process ran before: workers share a run.

    One member more may be there: `sense(camera, picture)` returns what the policy gets of a picture that `render` has
    drawn in this step, where a task has a bad sensor; films and people see what was drawn.
    """

    instruction: str  # of the task that is loaded

    def load_task(self, task: Any, seed: int, **scene: Any) -> None:
        """Builds the task's scene unless it stands already, and starts its episodes' draws from `seed`; with the
        benchmark's own robot and once for all, unless a profile says otherwise (`scene`, of `EpisodeProtocol.scene`; a
        benchmark without such profiles takes none).
        """

    def reset(self, episode: int, init_state: np.ndarray) -> None:
        """Starts episode `episode` (from 0) of the task at `init_state`, of `init_states` or `start`."""

    def start(self, episode: int) -> np.ndarray:
        """Returns a start state that the benchmark itself draws for `episode` by the seed of `load_task`: what
        demonstrations begin from, and none of the `init_states` that evaluation begins from.
        """

    def step(self, action: np.ndarray) -> bool:
        """Executes one action, float32 [n] as `Benchmark.action` says; returns whether the task is solved now."""

    def render(self, camera: str) -> np.ndarray:
        """Returns a camera's picture: uint8 [camera_size, camera_size, 3], bottom row first, as OpenGL draws."""

    def state(self) -> np.ndarray:
        """Returns what a policy may know of the robot: float32 [n] as `Benchmark.state` says."""

    def sim_state(self) -> np.ndarray:
        """Returns the simulator's whole state: float64, of one length within a task."""

    def restore(self, sim_state: np.ndarray) -> None:
        """Poses the scene as it was at `sim_state` of the episode that was reset last, to draw it afterwards."""

    def view(self) -> np.ndarray:
        """Returns what pictures show now, cameras aside: float64, of one length within a task."""

    def show(self, view: np.ndarray) -> None:
        """Poses the scene of the episode that was reset last for `render` to draw what it drew at `view`."""

    def fixture_poses(self) -> dict[str, np.ndarray]:
        """Returns by name what `reset` placed and `sim_state` does not hold; empty where there is nothing such."""

    def privileged(self, first: bool) -> dict[str, Any]:
        """Returns the true state for policies that ask for it, as a plain tree; `first`: with what never changes."""


class Benchmark(Protocol):
    """A benchmark. Everything but `make_env` must be cheap: the evaluator asks before it starts anything.

    Four members more may be there. `bases`, a mapping, names for a suite the one that it is made of: step limits,
    statistics and checkpoints of the base hold for it. `trials`, a mapping, says of a suite how many episodes of a task
    are its own protocol's, whatever the profile's. `lacking(tasks, assets)` returns why these tasks cannot be built
    from these assets, with the way out, and an empty text where they can.
    `requires`, a mapping, gives for some of `packages` how versions begin that its code runs with ("1.4"); others are
    refused before a run.
    """

    name: str  # as people call it; part of a run's identity
    module: str  # the module that holds it as BENCHMARK: `module = __name__`
    suites: tuple[str, ...]
    action: tuple[Part, ...]  # what `step` executes
    state: tuple[Part, ...]  # what `state` returns; empty: nothing
    control_hz: float  # steps per simulated second
    cameras: tuple[str, ...]  # those that `render` knows
    video_camera: str  # the one that videos show
    profiles: Mapping[str, Profile]  # by name; the first is taken where neither user nor policy names one
    packages: tuple[str, ...]  # distributions whose versions states and pictures depend on
    worker_gb: float  # memory of a worker that draws
    uncounted: tuple[str, ...]  # modules that `module` imports but no worker does: a change in them is no drift

    def tasks(self, suite: str) -> Sequence[Task]:
        """Returns the tasks of one of `suites`, in order."""

    def init_states(self, task: Any) -> np.ndarray:
        """Returns the task's start states [episodes, n]; episode k starts from row k."""

    def assets(self, asked: str | None, volume: Path) -> Assets:
        """Returns the assets to use: what --assets says, else the first that there are on the volume or elsewhere.

        ValueError, with the way out, where there are none or `asked` names what is none.
        """

    def renderer(self, render: str) -> str:
        """Returns what draws for `render` (auto, cpu, gpu), its version included; ValueError where nothing can."""

    def worker_variables(self, number: int) -> dict[str, str]:
        """Returns environment variables for worker `number` (from 0), such as the GPU of its turn."""

    def make_env(
        self, assets: Path, work: Path, cameras: tuple[str, ...], camera_size: int, render: str
    ) -> Environment:
        """Returns this process's environment, called before any simulator was imported; a second call, for another
        size, comes with the same assets and `render`.

        `work` is a folder of the run to write into, shared by its workers; a name that begins with a dot and ends in
        .partial is swept after a kill. `render` is auto, cpu, gpu, or none where no picture will be asked for.
        """


def base_of(benchmark: Benchmark, suite: str) -> str:
    """Returns the suite that `suite` is made of, itself where it is made of none."""
    return getattr(benchmark, "bases", {}).get(suite, suite)


def kind_of(task: Task) -> str:
    """Returns the kind of a task; empty where its benchmark has none."""
    return getattr(task, "kind", "")


def level_of(task: Task) -> int:
    """Returns the difficulty of a task; 0 where its benchmark has none, or not for this one."""
    return getattr(task, "level", 0)


def trials_of(benchmark: Benchmark, suite: str, profile: Profile) -> int:
    """Returns how many episodes of a task a whole run of the suite has."""
    return getattr(benchmark, "trials", {}).get(suite, profile.trials)


def sensed(env: Environment, camera: str, picture: np.ndarray) -> np.ndarray:
    """Returns what the policy gets of a picture: uint8 [size, size, 3], bottom row first, as it was drawn."""
    sense = getattr(env, "sense", None)
    return sense(camera, picture) if sense else picture


def require_assets(benchmark: Benchmark, tasks: Sequence[Task], assets: Assets) -> None:
    """Raises ValueError, with the way out, where a task cannot be built from these assets."""
    lacking = getattr(benchmark, "lacking", None)
    if why := lacking(tasks, assets) if lacking else "":
        raise ValueError(why)


def load(module: str) -> Benchmark:
    """Returns the benchmark that a module holds."""
    return import_module(module).BENCHMARK
