"""The result of a run: a checkpoint in the published layout, with the robot's description, ready to serve.

Every file of weights is the base's with the trained tensors inserted, in the base's dtype; the other robots' rows
are the base's bits.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from services.gr00t.checkpoint import embodiment, tokenizer
from services.gr00t.checkpoint.directory import METADATA, CheckpointDirectory
from services.gr00t.training.network import ROWS
from services.gr00t.training.robot import TrainingRobot
from vla_common.volume import replace_directory
from vla_modelkit.checkpoint import INDEX, file_hash, weight_files, write_record

COPIED = ("config.json", *tokenizer.FILES)


def write(
    directory: Path,
    base: CheckpointDirectory,
    robot: TrainingRobot,
    trained: Mapping[str, Tensor],
    provenance: Mapping[str, Any],
) -> Path:
    """Write the checkpoint atomically and return its directory. trained: name -> tensor, rows as [1, …].

    provenance: settings, data and base, stored in the record.
    """

    def fill(draft: Path) -> None:
        for name in COPIED:
            if (base.directory / name).is_file():
                shutil.copyfile(base.directory / name, draft / name)
        if (base.directory / INDEX).is_file():
            shutil.copyfile(base.directory / INDEX, draft / INDEX)
        for path in weight_files(base.directory):
            _weights(path, draft / path.name, trained, robot.embodiment.projector)
        (draft / METADATA).parent.mkdir()
        metadata = {**base.metadata, robot.embodiment.tag: robot.metadata}
        (draft / METADATA).write_text(json.dumps(metadata, indent=1) + "\n", encoding="utf-8")
        embodiment.write(draft / embodiment.EMBODIMENT_FILE, robot.embodiment)
        hashes = {path.relative_to(draft).as_posix(): file_hash(path) for path in _files(draft)}
        eagle = {"eagle": base.overrides} if base.overrides else {}
        write_record(
            draft, f"finetuned-{directory.name}", provenance["settings_digest"], hashes, **eagle, finetuned=provenance
        )

    return replace_directory(directory, fill)


def _files(directory: Path) -> Iterable[Path]:
    return (path for path in sorted(directory.rglob("*")) if path.is_file())


def _weights(source: Path, target: Path, trained: Mapping[str, Tensor], robot: int) -> None:
    with safe_open(str(source), framework="pt", device="cpu") as stored:
        tensors = {name: _put(name, stored.get_tensor(name), trained, robot) for name in stored.keys()}  # noqa: SIM118
        save_file(tensors, str(target), metadata={"format": "pt"})
    target.chmod(0o644)  # as other files: a container may run as another user


def _put(name: str, value: Tensor, trained: Mapping[str, Tensor], robot: int) -> Tensor:
    if name not in trained:
        return value
    fresh = trained[name].to("cpu", value.dtype)
    if not torch.isfinite(fresh).all():
        raise ValueError(f"{name} is not finite after training; try a lower --learning-rate")
    if name.startswith(ROWS):
        value[robot] = fresh[0]
        return value
    return fresh.contiguous()
