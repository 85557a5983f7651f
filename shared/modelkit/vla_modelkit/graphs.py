"""Running the same pass again and again: on a GPU as a captured CUDA graph, elsewhere by calling it.

A captured pass costs one launch instead of a thousand. It reads and writes the same memory every time, so each shape
has buffers of its own, filled before and read after.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Pass = Callable[..., tuple[Tensor, ...]]
_WARM_RUNS = 2  # libraries choose kernels and take workspaces on their first calls, which must not be captured


@dataclass
class Eager:
    """Calls the pass."""

    name: str = "none"

    def run(self, key: Hashable, function: Pass, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Returns the pass's outputs. `key` names the pass and its shapes."""
        return function(*inputs)


@dataclass
class CudaGraphs:
    """Captures each pass at its first use and replays it from then on. Outputs live until the next run of that key.

    All graphs share one memory pool: they never run at the same time.
    """

    name: str = "cuda graphs"
    _graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], tuple[Tensor, ...]]] = field(
        default_factory=dict
    )
    _pool: object = None

    def run(self, key: Hashable, function: Pass, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Returns the pass's outputs."""
        if key not in self._graphs:
            self._graphs[key] = self._capture(function, inputs)
        graph, buffers, outputs = self._graphs[key]
        for buffer, value in zip(buffers, inputs, strict=True):
            buffer.copy_(value, non_blocking=True)
        graph.replay()
        return outputs

    def _capture(self, function: Pass, inputs: tuple[Tensor, ...]):
        buffers = tuple(value.clone() for value in inputs)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_RUNS):
                function(*buffers)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = function(*buffers)
        self._pool = graph.pool()
        return graph, buffers, outputs
