"""The weights of a checkpoint directory: safetensors, and OpenVLA-OFT's parts in files of torch.save."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch
from torch import Tensor

from services.openvla.checkpoint.oft import PARTS, check_oft_files, part_file
from vla_modelkit.checkpoint import CheckpointError
from vla_modelkit.weights import Safetensors


class CheckpointWeights(Safetensors):
    """The weights of a checkpoint directory, with the tensors of OpenVLA-OFT's parts."""

    def __init__(self, directory: Path):
        super().__init__(directory)
        self._parts: dict[str, Tensor] = {}
        for part in PARTS:
            if path := part_file(directory, part):
                self._parts |= {f"{part}.{name}": value for name, value in read_part(path).items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {**super().shapes(), **{name: tuple(value.shape) for name, value in self._parts.items()}}

    def read(self, name: str) -> Tensor:
        return self._parts[name] if name in self._parts else super().read(name)


def read_part(path: Path) -> dict[str, Tensor]:
    """Return a part's tensors by name, without the prefix of distributed training. Raises CheckpointError.

    Only tensors are read: pickled code is refused. So is torch's format before 1.6, whose reader is not as strict.
    """
    if not zipfile.is_zipfile(path):
        raise CheckpointError(f"{path} is not a file of torch.save, or incomplete; download the checkpoint again")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle's and zip's errors have no common class
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{path} cannot be read as plain tensors ({type(error).__name__}: {reason}); expected the state_dict that "
            "OpenVLA-OFT's training saves: download it again"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise CheckpointError(f"{path} has other values than tensors; expected the state_dict of one part")
    if any("noise_predictor." in name for name in state):
        check_oft_files(path.parent, ["noisy_action_projector--"])
    return {name.removeprefix("module."): value for name, value in state.items()}
