"""Read tensors by name: lazily from sharded safetensors, or random ones for benchmarks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Protocol
from zlib import crc32

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vla_common.unreadable import explain
from vla_modelkit.checkpoint import SINGLE, CheckpointError, weight_files

_LEFTOVERS = re.compile(r"rotary_emb\.inv_freq$")  # buffers written by older transformers; computed here


class WeightSource(Protocol):
    """A source of weights."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every tensor by name."""

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor as it is stored."""


class Safetensors:
    """The *.safetensors files of a checkpoint directory; tensors are read on demand.

    Raises CheckpointError for a missing, truncated or foreign file.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self._file_names: dict[str, str] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._open: dict[str, object] = {}
        for file in (path.name for path in weight_files(directory)):
            handle = self._handle(file)
            for name in handle.keys():  # noqa: SIM118
                self._file_names[name] = file
                self._shapes[name] = tuple(handle.get_slice(name).get_shape())

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every tensor by name."""
        return self._shapes

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor as it is stored, on the CPU."""
        return self._handle(self._file_names[name]).get_tensor(name)

    def _handle(self, file: str):
        if file not in self._open:
            try:
                self._open[file] = safe_open(str(self.directory / file), framework="pt", device="cpu")
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{self.directory / file}: {explain(self.directory / file, error)}") from error
        return self._open[file]


class MadeUp:
    """Random weights of the given shapes, created on demand on `device`: for benchmarks without a checkpoint."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device, seed: int = 0):
        self._shapes, self._device = dict(shapes), device
        self._generator, self._seed = torch.Generator(device), seed

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every tensor by name."""
        return self._shapes

    def read(self, name: str) -> torch.Tensor:
        """Return reproducible normal numbers, scaled to keep activations in range; norms are ones."""
        shape = self._shapes[name]
        if len(shape) == 1:
            norm = "norm" in name and name.endswith("weight")
            return torch.full(shape, 1.0 if norm else 0.01, dtype=torch.bfloat16, device=self._device)
        spread = 0.7 * torch.Size(shape[1:]).numel() ** -0.5
        self._generator.manual_seed(self._seed + crc32(name.encode()))
        weights = torch.empty(shape, dtype=torch.bfloat16, device=self._device)
        return weights.normal_(0.0, spread, generator=self._generator)


def rewrite_weights(source: Path, target: Path, names: Set[str], change: Callable[[str, Tensor], Tensor]) -> set[str]:
    """Write a file of weights in which tensors are changed; return the names of those that it has.

    change: name and tensor to its new value, which is stored in the old one's dtype.
    """
    with safe_open(str(source), framework="pt", device="cpu") as stored:
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    changed = tensors.keys() & names
    for name in changed:
        tensors[name] = change(name, tensors[name]).to("cpu", tensors[name].dtype).contiguous()
        if not torch.isfinite(tensors[name]).all():
            raise ValueError(f"{name} is not finite; train with a lower --learning-rate, or copy the files again")
    save_file(tensors, str(target), metadata={"format": "pt"})
    target.chmod(0o644)  # safetensors creates files that only their owner can read; a container is another user
    return changed


def convert_to_safetensors(path: Path) -> Path:
    """Replace a torch file of named tensors by model.safetensors in its directory, and return that; no code runs.

    Raises CheckpointError for a file that holds anything else.
    """
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file fails anywhere in zip, pickle or tensor code
        raise CheckpointError(f"{path} is not a file of tensors: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(tensors, Mapping) or not all(isinstance(value, torch.Tensor) for value in tensors.values()):
        raise CheckpointError(f"{path} holds more than named tensors; convert it to {SINGLE}")
    copies = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    save_file(copies, path.with_name(SINGLE), metadata={"format": "pt"})
    path.unlink()
    return path.with_name(SINGLE)


def check_names(shapes: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]) -> None:
    """Raise CheckpointError if the names or shapes of a checkpoint do not match its config."""
    if missing := sorted(expected.keys() - shapes.keys()):
        raise CheckpointError(
            f"the checkpoint lacks {len(missing)} of {len(expected)} tensors: {_some(missing)}; its weights do not "
            "match its config.json, or a weight file is missing"
        )
    unexpected = sorted(name for name in shapes.keys() - expected.keys() if not _LEFTOVERS.search(name))
    if unexpected:
        raise CheckpointError(
            f"the checkpoint has {len(unexpected)} tensors that this model does not use: {_some(unexpected)}; "
            "merge a LoRA adapter first"
        )
    for name, shape in expected.items():
        if tuple(shapes[name]) != tuple(shape):
            raise CheckpointError(
                f"{name} has shape {list(shapes[name])}; config.json requires {list(shape)}: they belong to "
                "different models"
            )


def _some(names: Iterable[str], limit: int = 4) -> str:
    names = list(names)
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
