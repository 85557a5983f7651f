"""The result of a run: a checkpoint in the published layout, with the robot's description, ready to serve.

Every file of weights is the base's with the trained tensors inserted, in the base's dtype; the other robots' rows
are the base's bits.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
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
        for name in ("config.json", *tokenizer.FILES, INDEX):
            if (base.directory / name).is_file():
                shutil.copyfile(base.directory / name, draft / name)
        for path in weight_files(base.directory):
            with safe_open(str(path), framework="pt", device="cpu") as stored:
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            for name in tensors.keys() & trained.keys():
                _insert(name, tensors, trained[name], robot.embodiment.projector)
            save_file(tensors, str(draft / path.name), metadata={"format": "pt"})
            (draft / path.name).chmod(0o644)  # as other files: a container may run as another user
        (draft / METADATA).parent.mkdir()
        metadata = {**base.metadata, robot.embodiment.tag: robot.metadata}
        (draft / METADATA).write_text(json.dumps(metadata, indent=1) + "\n", encoding="utf-8")
        embodiment.write(draft / embodiment.EMBODIMENT_FILE, robot.embodiment)
        files = (path for path in sorted(draft.rglob("*")) if path.is_file())
        hashes = {path.relative_to(draft).as_posix(): file_hash(path) for path in files}
        eagle = {"eagle": base.overrides} if base.overrides else {}
        write_record(
            draft, f"finetuned-{directory.name}", provenance["settings_digest"], hashes, **eagle, finetuned=provenance
        )

    return replace_directory(directory, fill)


def _insert(name: str, tensors: dict[str, Tensor], trained: Tensor, robot: int) -> None:
    """Replace a tensor by its trained one; of those with a row per robot only that row."""
    fresh = trained.to("cpu", tensors[name].dtype)
    if not torch.isfinite(fresh).all():
        raise ValueError(f"{name} is not finite after training; try a lower --learning-rate")
    if name.startswith(ROWS):
        tensors[name][robot] = fresh[0]
    else:
        tensors[name] = fresh.contiguous()
