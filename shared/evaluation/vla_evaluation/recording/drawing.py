"""Pictures of recorded steps: any camera at any size, after the fact, in this process or in several."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from itertools import groupby, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from vla_common.volume import Volume
from vla_contract.protocol.errors import did_you_mean
from vla_evaluation import benchmark
from vla_evaluation.benchmark import Assets, Benchmark
from vla_evaluation.recording.reading import Demonstration, Source

BLOCK = 8  # demonstrations of one task that a process draws in a row: it builds the task's scene once for them
BLOCK_BYTES = 2**28  # of their pictures, at most
Drawn = dict[str, np.ndarray]  # camera → uint8 [T, size, size, 3]


class Painter:
    """Draws the steps of demonstrations from one source, at one size. ValueError where its assets are not there."""

    def __init__(self, source: Source, size: int):
        if size < 1:
            raise ValueError(f"pictures of {size} pixels make no sense; expected 1 or more")
        self.source, self.size, self.benchmark = source, size, benchmark.load(source.module)
        assets = _same_assets(self.benchmark, source.assets)
        work = _work_folder(source.folder)
        self.env = self.benchmark.make_env(assets.path, work, tuple(self.benchmark.cameras), size, source.render)
        self.tasks: dict[str, Sequence[Any]] = {}

    def frames(self, demonstration: Demonstration, camera: str) -> np.ndarray:
        """Returns `Demonstration.frames`."""
        if camera not in self.benchmark.cameras:
            raise ValueError(f"camera {camera!r} not found{did_you_mean(camera, self.benchmark.cameras)}")
        self._pose(demonstration)
        pictures = np.empty((demonstration.steps, self.size, self.size, 3), np.uint8)
        for picture, view in zip(pictures, demonstration.views, strict=True):
            self.env.show(view)
            picture[:] = self.env.render(camera)
        return pictures

    def _pose(self, demonstration: Demonstration) -> None:
        """Brings a demonstration's scene back; ValueError where its fixtures stood elsewhere."""
        suite = demonstration.suite
        tasks = self.tasks.setdefault(suite, self.benchmark.tasks(suite))
        self.env.load_task(next(task for task in tasks if task.index == demonstration.task), demonstration.seed)
        self.env.reset(0, self.env.start(0))
        for name, pose in self.env.fixture_poses().items():
            if not np.array_equal(demonstration.arrays[f"fixture_{name}"], pose):
                raise ValueError(f"{demonstration.path}: {name} stood elsewhere when it was recorded; record it again")

    def close(self) -> None:
        """Frees what the environment holds, where it can."""
        getattr(self.env, "close", lambda: None)()


_painter: Painter | None = None  # of this process: an environment takes a gigabyte


def painter(source: Source, size: int) -> Painter:
    """Returns this process's painter, kept for as long as the same is asked for."""
    global _painter
    if _painter is None or (_painter.source, _painter.size) != (source, size):
        if _painter is not None:
            _painter.close()
        _painter = Painter(source, size)
    return _painter


def draw(
    demonstrations: Sequence[Demonstration],
    cameras: Sequence[str],
    size: int,
    workers: int = 1,
    then: Callable[[Demonstration, Drawn], Any] | None = None,
) -> Iterator[tuple[Demonstration, Any]]:
    """Yields each demonstration with its pictures by camera, in the order given; `workers` processes draw ahead.

    then: called with both in the process that drew, and what it returns is yielded instead, as for films that are
    encoded there; a function of a module. ValueError where something cannot be drawn, RuntimeError where a process
    died.
    """
    blocks = list(_blocks(demonstrations, len(cameras) * size**2 * 3))
    if workers < 1:
        raise ValueError(f"{workers} workers make no sense; expected 1 or more")
    if workers == 1:
        for block in blocks:
            for one in block:
                yield one, _draw_one(one, cameras, size, then)
        return
    pool = ProcessPoolExecutor(min(workers, max(1, len(blocks))), get_context("spawn"), _alone)
    try:
        waiting = (pool.submit(_draw_block, block, tuple(cameras), size, then) for block in blocks)
        for block, results in zip(blocks, _ahead(waiting, workers + 1), strict=True):
            yield from zip(block, results, strict=True)
    except BrokenProcessPool as error:
        raise RuntimeError("a process that draws has died (out of memory?); try fewer --workers") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _ahead(futures: Iterator[Future], count: int) -> Iterator[Any]:
    """Yields results in order, with so many of the futures begun."""
    begun = deque(islice(futures, count))
    while begun:
        yield begun.popleft().result()
        begun.extend(islice(futures, 1))


def _blocks(demonstrations: Sequence[Demonstration], step_bytes: int) -> Iterator[list[Demonstration]]:
    """Yields neighbours that have their task in common, as many at once as may be held."""
    for _, of_task in groupby(demonstrations, key=lambda one: (one.source.folder, one.task)):
        block: list[Demonstration] = []
        for one in of_task:
            held = sum(other.steps for other in block) * step_bytes
            if block and (len(block) == BLOCK or held + one.steps * step_bytes > BLOCK_BYTES):
                yield block
                block = []
            block.append(replace(one))  # without the arrays that were read of it
        yield block


def _alone() -> None:
    """One thread each: processes that draw beside each other must not compete."""
    os.environ.setdefault("LP_NUM_THREADS", "0")


def _draw_block(block: list[Demonstration], cameras: tuple[str, ...], size: int, then: Callable | None) -> list[Any]:
    return [_draw_one(one, cameras, size, then) for one in block]


def _draw_one(one: Demonstration, cameras: Sequence[str], size: int, then: Callable | None) -> Any:
    drawn = {camera: one.frames(camera, size) for camera in cameras}
    return drawn if then is None else then(one, drawn)


def _same_assets(of: Benchmark, recorded: Assets) -> Assets:
    """Returns the assets that a recording was made with; ValueError where they are not there."""
    for asked in (recorded.kind, str(recorded.path)):
        with suppress(ValueError):
            if (found := of.assets(asked, Volume().root)).digest == recorded.digest:
                return found
    raise ValueError(
        f"the assets of the recording ({recorded.kind}, {recorded.digest[:12]}) are neither here nor at "
        f"{recorded.path}, and on others pictures would show other things; bring them there, or record again"
    )


def _work_folder(folder: Path) -> Path:
    """Returns the recording's own, or a temporary one where that cannot be written."""
    if os.access(folder / "work", os.W_OK):
        return folder / "work"
    made = Path(tempfile.mkdtemp(prefix="vla-lab-drawing-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
