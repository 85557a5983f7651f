"""Recorded episodes, read back: `Demonstrations(directory)` needs neither benchmark nor simulator until it renders."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vla_common.volume import Volume
from vla_contract.protocol.errors import did_you_mean
from vla_contract.protocol.parts import Part
from vla_evaluation import benchmark
from vla_evaluation.benchmark import Assets, Environment, Task
from vla_evaluation.runs.directories import STORE
from vla_evaluation.store.records import StoreError, as_damage
from vla_evaluation.store.runstore import RunStore

BLOCK = 8  # demonstrations of one task per job, for which a process builds the scene once
BLOCK_BYTES = 2**28  # maximum size of their frames
Frames = dict[str, np.ndarray]  # camera → uint8 [T, size, size, 3]
Then = Callable[["Demonstration", Frames], Any]


@dataclass(frozen=True)
class RenderSettings:
    """The settings to render a recording: directory, benchmark module, assets; render is auto, cpu or gpu."""

    directory: Path
    module: str
    assets: Assets
    render: str
    vary: str = ""


def variation(vary: str) -> dict[str, Any]:
    """Return the options of `Environment.load_task` for a value of `record --vary`."""
    return {"vary": tuple(vary.split(","))} if vary else {}


@dataclass(frozen=True)
class Demonstration:
    """One recorded episode, of T steps. Its arrays are read on first use.

    index    its number in the recording, from 0
    suite    of its task
    task     index of its task in the suite
    episode  its number among the task's attempts; with `seed`, its start was sampled from it
    """

    index: int
    suite: str
    task: int
    episode: int
    instruction: str
    success: bool
    seed: int
    steps: int
    path: Path
    source: RenderSettings = field(repr=False)

    ADVICE: ClassVar[str] = "record it again"
    LENGTHS: ClassVar[dict[str, int]] = dict.fromkeys(("actions", "executed", "states", "views"), 0)  # minus the steps

    @cached_property
    def stored(self) -> dict[str, np.ndarray]:
        """The file's arrays, `fixture_…` being poses. ValueError if it is damaged."""
        try:
            with np.load(self.path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            if any(len(arrays[name]) != self.steps + more for name, more in self.LENGTHS.items()):
                raise ValueError(f"its arrays do not have {self.steps} steps")
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            reason = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"demonstration {self.path} cannot be read: {reason}; {self.ADVICE}") from error
        return arrays

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """All recorded arrays by name. ValueError if the file is damaged."""
        return self.stored

    @property
    def actions(self) -> np.ndarray:
        """The policy's action at each step, float32 [T, m] as the benchmark executes it: the training target."""
        return self.arrays["actions"]

    @property
    def executed(self) -> np.ndarray:
        """The executed actions, float32 [T, m]: the policy's with noise."""
        return self.arrays["executed"]

    @property
    def states(self) -> np.ndarray:
        """The proprioception before each action, as a policy would receive it: float32 [T, n]."""
        return self.arrays["states"]

    @property
    def sim_states(self) -> np.ndarray:
        """The simulator's whole state before each action: float64 [T, k]."""
        return self.arrays["sim_states"]

    @property
    def views(self) -> np.ndarray:
        """The views before each action: float64 [T, v]; see `Environment.view`."""
        return self.arrays["views"]

    def frames(self, camera: str, size: int, steps: Sequence[int] | None = None) -> np.ndarray:
        """Render the images before each action, or before those of `steps`, as a policy would receive them.

        uint8 [T, size, size, 3], bottom row first as the environment renders them (`[:, ::-1]` is upright,
        `[:, ::-1, ::-1]` turned by 180°). ValueError for an unknown camera, or if the scene cannot be restored
        exactly.
        """
        rendering = renderer(self.source, size)
        if camera not in rendering.benchmark.cameras:
            raise ValueError(f"camera {camera!r} not found{did_you_mean(camera, rendering.benchmark.cameras)}")
        views = self.views if steps is None else self.views[list(steps)]
        self.reset_scene(rendering)
        images = np.empty((len(views), size, size, 3), np.uint8)
        for image, view in zip(images, views, strict=True):
            rendering.env.show(view)
            image[:] = rendering.env.render(camera)
        return images

    def reset_scene(self, rendering: Renderer) -> None:
        """Restore the episode's scene. ValueError if a fixture is at another position than in the recording."""
        tasks = rendering.benchmark.tasks(self.suite)
        self.load_scene(rendering, next(task for task in tasks if task.index == self.task))
        for name, pose in rendering.env.fixture_poses().items():
            if not np.array_equal(self.stored[f"fixture_{name}"], pose):
                raise ValueError(f"{self.path}: {name!r} is at another position than in the recording; {self.ADVICE}")

    def load_scene(self, rendering: Renderer, task: Task) -> None:
        """Load the task and reset the scene to the episode's start."""
        rendering.env.load_task(task, self.seed, **variation(self.source.vary))
        rendering.env.reset(0, rendering.env.start(0))


class Demonstrations:
    """A directory that `./lab record` made. A recording in progress has its finished episodes.

    name, suite, policy  the recording's, the suite's and the policy's name
    benchmark            the benchmark's name
    rate_hz              steps per second
    cameras              those that can be rendered
    action, state        the parts of `Demonstration.actions` and `.states`
    noise                the standard deviation of the noise on the executed actions, 0 for none
    tasks                instructions by the task's index
    episodes             the demonstrations, by task and episode
    """

    def __init__(self, directory: Path | str, render: str = "auto"):
        """Read the store. ValueError if the directory holds no recording, or a damaged one."""
        self.directory = Path(directory).absolute()
        store = self.directory / STORE
        if not store.is_file():
            raise ValueError(f"{directory} is not a recording (no {STORE}); create one with ./lab record")
        try:
            with as_damage(store), RunStore(store, readonly=True) as opened:
                description, self.identity, job = opened.described(), opened.meta("identity"), opened.meta("job")
                rows = [row for row in opened.finished() if "recording" in row.result]
                self.suite = opened.suite
        except StoreError as error:
            raise ValueError(str(error)) from error
        if "recording" not in description:
            raise ValueError(
                f"{self.directory} is an evaluation run, which must not be in training data; use ./lab record"
            )
        recording, identity = description["recording"], self.identity
        self.name, self.policy = self.directory.name, identity["policy"]["name"]
        self.benchmark, self.rate_hz = identity["benchmark"], float(identity["control_hz"])
        self.cameras, self.noise = tuple(recording["cameras"]), float(identity["recording"]["noise"])
        self.action = tuple(Part(**part) for part in identity["action"])
        self.state = tuple(Part(**part) for part in recording["state"])
        self.tasks = {index: task["instruction"] for index, task in enumerate(description["tasks"])}
        assets = Assets(identity["assets"]["kind"], Path(job["assets"]), identity["assets"]["digest"])
        vary = identity["recording"].get("vary", "")
        source = RenderSettings(self.directory, job["benchmark"], assets, render, vary)
        self.episodes = tuple(
            Demonstration(
                index, self.suite, row.task, row.episode, self.tasks[row.task], row.success, row.result["seed"],
                row.result["kept_steps"], self.directory / row.result["recording"], source,
            )
            for index, row in enumerate(rows)
        )  # fmt: skip


class Renderer:
    """Renders the episodes of one source at one size. ValueError if its assets are missing."""

    def __init__(self, source: RenderSettings, size: int):
        if size < 1:
            raise ValueError(f"images of {size} pixels cannot be rendered; expected 1 or more")
        self.source, self.size, self.benchmark = source, size, benchmark.load(source.module)
        work = source.directory / "work"
        if not os.access(work, os.W_OK):
            work = Path(tempfile.mkdtemp(prefix="vla-lab-drawing-"))
            atexit.register(shutil.rmtree, work, ignore_errors=True)
        assets, cameras = self._find_assets(source.assets), tuple(self.benchmark.cameras)
        self.env: Environment = self.benchmark.make_env(assets.path, work, cameras, size, source.render)

    def _find_assets(self, recorded: Assets) -> Assets:
        for name in (recorded.kind, str(recorded.path)):
            with suppress(ValueError):
                if (assets := self.benchmark.assets(name, Volume().root)).digest == recorded.digest:
                    return assets
        raise ValueError(
            f"the recording's assets ({recorded.kind}, {recorded.digest[:12]}) are neither on this volume nor at "
            f"{recorded.path}; images on other assets would differ. Copy them there, or record again"
        )


_renderer: Renderer | None = None  # of this process: an environment takes a gigabyte


def renderer(source: RenderSettings, size: int | None = None) -> Renderer:
    """Return this process's renderer, a new one if the last had another source or size; None: any size."""
    global _renderer
    if _renderer is None or _renderer.source != source or size not in (None, _renderer.size):
        if _renderer is not None:
            getattr(_renderer.env, "close", lambda: None)()
        _renderer = Renderer(source, size or 64)
    return _renderer


# --- frames of many demonstrations, in this process or in several -----------------------------------------------------


def draw(
    demonstrations: Sequence[Demonstration], cameras: Sequence[str], size: int, workers: int = 1,
    then: Then | None = None,
) -> Iterator[tuple[Demonstration, Any]]:  # fmt: skip
    """Yield each demonstration with its frames by camera, in the given order; `workers` processes render ahead.

    then: called with both in the process that rendered, and its result is yielded instead, as for videos that are
    encoded there; a function of a module. ValueError if something cannot be rendered, RuntimeError if a process
    died.
    """
    if workers < 1:
        raise ValueError(f"workers is {workers}; expected 1 or more")
    if workers == 1:
        for demonstration in map(replace, demonstrations):  # copies, so arrays are freed after each
            yield demonstration, _render(demonstration, cameras, size, then)
        return
    blocks = list(_blocks(demonstrations, len(cameras) * size**2 * 3))
    pool = ProcessPoolExecutor(min(workers, max(1, len(blocks))), get_context("spawn"), _limit_render_threads)
    try:
        jobs = ((block, pool.submit(_render_block, block, tuple(cameras), size, then)) for block in blocks)
        submitted = deque(islice(jobs, workers + 1))
        while submitted:
            block, future = submitted.popleft()
            yield from zip(block, future.result(), strict=True)
            submitted.extend(islice(jobs, 1))
    except BrokenProcessPool as error:
        raise RuntimeError("a rendering process died (out of memory?); try fewer --workers") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _blocks(demonstrations: Sequence[Demonstration], step_bytes: int) -> Iterator[list[Demonstration]]:
    """Yield neighbours with the same task, as many at once as fit into BLOCK_BYTES."""
    for _, of_task in groupby(demonstrations, key=lambda one: (one.source.directory, one.task)):
        block: list[Demonstration] = []
        for demonstration in of_task:
            size = sum(other.steps for other in (*block, demonstration)) * step_bytes
            if block and (len(block) == BLOCK or size > BLOCK_BYTES):
                yield block
                block = []
            block.append(replace(demonstration))  # without its arrays
        yield block


def _limit_render_threads() -> None:
    os.environ.setdefault("LP_NUM_THREADS", "0")  # processes that render at the same time must not compete


def _render_block(block: list[Demonstration], cameras: Sequence[str], size: int, then: Then | None) -> list[Any]:
    return [_render(demonstration, cameras, size, then) for demonstration in block]


def _render(demonstration: Demonstration, cameras: Sequence[str], size: int, then: Then | None) -> Any:
    frames = {camera: demonstration.frames(camera, size) for camera in cameras}
    return frames if then is None else then(demonstration, frames)
