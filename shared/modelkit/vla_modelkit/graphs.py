"""Run the same pass many times: as a captured CUDA graph on a GPU, by calling it elsewhere.

A captured pass costs one launch instead of a thousand. It always reads and writes the same memory, so each shape has
its own buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Pass = Callable[..., tuple[Tensor, ...]]
_WARM_RUNS = 2  # libraries select kernels and allocate workspaces on first calls, which must not be captured


@dataclass
class Eager:
    """Calls the pass."""

    name: str = "none"

    def run(self, key: Hashable, function: Pass, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the pass's outputs. `key` names the pass and its shapes."""
        return function(*inputs)

    def seal(self) -> None:
        """Do nothing: see CudaGraphs."""


@dataclass
class CudaGraphs:
    """Captures each pass at its first use and replays it afterwards. Outputs are valid until the next run of that key.

    All graphs share one memory pool: they never run at the same time. After `seal`, passes of new keys are called.
    """

    name: str = "cuda graphs"
    _graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], tuple[Tensor, ...]]] = field(
        default_factory=dict
    )
    _pool: object = None
    _sealed: bool = False

    def seal(self) -> None:
        """Capture no further passes: a capture would take seconds and memory while clients wait."""
        self._sealed = True

    def run(self, key: Hashable, function: Pass, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the pass's outputs."""
        if key not in self._graphs:
            if self._sealed:
                return function(*inputs)
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
