"""Reading tensors by name: from sharded safetensors, lazily, or made up for benchmarks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol
from zlib import crc32

import torch
from safetensors import SafetensorError, safe_open

from vla_common.unreadable import explain
from vla_modelkit.checkpoint import CheckpointError, weight_files

_LEFTOVERS = re.compile(r"rotary_emb\.inv_freq$")  # buffers that older transformers wrote; they are computed


class Source(Protocol):
    """Where weights come from."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Returns name -> shape of every tensor there is."""

    def read(self, name: str) -> torch.Tensor:
        """Returns a tensor as it is stored."""


class Safetensors:
    """The *.safetensors files of a checkpoint folder; a tensor is read when it is asked for.

    Raises CheckpointError for a missing, truncated or foreign file.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self._place: dict[str, str] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._open: dict[str, object] = {}
        for file in (path.name for path in weight_files(directory)):
            handle = self._handle(file)
            for name in handle.keys():  # noqa: SIM118
                self._place[name] = file
                self._shapes[name] = tuple(handle.get_slice(name).get_shape())

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Returns name -> shape."""
        return self._shapes

    def read(self, name: str) -> torch.Tensor:
        """Returns a tensor as it is stored, on the CPU."""
        return self._handle(self._place[name]).get_tensor(name)

    def _handle(self, file: str):
        if file not in self._open:
            try:
                self._open[file] = safe_open(str(self.directory / file), framework="pt", device="cpu")
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{self.directory / file}: {explain(self.directory / file, error)}") from error
        return self._open[file]


class MadeUp:
    """Random weights of given shapes, made on `device` when asked for: for benchmarks of a size nobody has on disk."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device, seed: int = 0):
        self._shapes, self._device = dict(shapes), device
        self._generator, self._seed = torch.Generator(device), seed

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Returns name -> shape."""
        return self._shapes

    def read(self, name: str) -> torch.Tensor:
        """Returns normal numbers whose spread keeps activations in range, the same at every reading; norms are ones."""
        shape = self._shapes[name]
        if len(shape) == 1:
            norm = "norm" in name and name.endswith("weight")
            return torch.full(shape, 1.0 if norm else 0.01, dtype=torch.bfloat16, device=self._device)
        spread = 0.7 * torch.Size(shape[1:]).numel() ** -0.5
        self._generator.manual_seed(self._seed + crc32(name.encode()))
        weights = torch.empty(shape, dtype=torch.bfloat16, device=self._device)
        return weights.normal_(0.0, spread, generator=self._generator)


def check_names(found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]) -> None:
    """Raises CheckpointError where the names or shapes of a checkpoint are not those its config asks for."""
    if missing := sorted(expected.keys() - found.keys()):
        raise CheckpointError(
            f"the checkpoint lacks {len(missing)} of {len(expected)} tensors: {_some(missing)}; its weights do not "
            "belong to its config.json, or a weight file is missing"
        )
    unexpected = sorted(name for name in found.keys() - expected.keys() if not _LEFTOVERS.search(name))
    if unexpected:
        raise CheckpointError(
            f"the checkpoint holds {len(unexpected)} tensors that this model has no place for: {_some(unexpected)}; "
            "a LoRA adapter has to be merged first"
        )
    for name, shape in expected.items():
        if tuple(found[name]) != tuple(shape):
            raise CheckpointError(
                f"{name} has shape {list(found[name])}; config.json asks for {list(shape)}: they belong to "
                "different models"
            )


def _some(names: Iterable[str], most: int = 4) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
