"""Frames of recorded steps: any camera at any size, after the fact, in this process or in several."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from itertools import groupby, islice
from multiprocessing import get_context
from typing import Any

import numpy as np

from vla_evaluation.recording.demonstrations import Demonstration

BLOCK = 8  # demonstrations of one task per job, for which a process builds the scene once
BLOCK_BYTES = 2**28  # maximum size of their frames
Frames = dict[str, np.ndarray]  # camera → uint8 [T, size, size, 3]
Then = Callable[[Demonstration, Frames], Any]


def draw(
    demonstrations: Sequence[Demonstration],
    cameras: Sequence[str],
    size: int,
    workers: int = 1,
    then: Then | None = None,
) -> Iterator[tuple[Demonstration, Any]]:
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
        tasks = ((block, pool.submit(_render_block, block, tuple(cameras), size, then)) for block in blocks)
        submitted = deque(islice(tasks, workers + 1))
        while submitted:
            block, future = submitted.popleft()
            yield from zip(block, future.result(), strict=True)
            submitted.extend(islice(tasks, 1))
    except BrokenProcessPool as error:
        raise RuntimeError("a rendering process died (out of memory?); try fewer --workers") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _blocks(demonstrations: Sequence[Demonstration], step_bytes: int) -> Iterator[list[Demonstration]]:
    """Yield neighbours with the same task, as many at once as fit into BLOCK_BYTES."""
    for _, of_task in groupby(
        demonstrations, key=lambda demonstration: (demonstration.source.directory, demonstration.task)
    ):
        block: list[Demonstration] = []
        for demonstration in of_task:
            size = sum(other.steps for other in (*block, demonstration)) * step_bytes
            if block and (len(block) == BLOCK or size > BLOCK_BYTES):
                yield block
                block = []
            block.append(replace(demonstration))  # without its arrays
        yield block


def _limit_render_threads() -> None:
    """Processes that render at the same time must not compete."""
    os.environ.setdefault("LP_NUM_THREADS", "0")


def _render_block(block: list[Demonstration], cameras: Sequence[str], size: int, then: Then | None) -> list[Any]:
    return [_render(demonstration, cameras, size, then) for demonstration in block]


def _render(demonstration: Demonstration, cameras: Sequence[str], size: int, then: Then | None) -> Any:
    frames = {camera: demonstration.frames(camera, size) for camera in cameras}
    return frames if then is None else then(demonstration, frames)
