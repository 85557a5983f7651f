"""The result of a run: the base's checkpoint with merged weights, the adapter next to it, ready to serve.

The layout is the one that openvla-oft publishes: `lora_adapter/`, and `action_head--N_checkpoint.pt` with
`proprio_projector--N_checkpoint.pt` for an L1 head.
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

from services.openvla.checkpoint.oft import PARTS
from services.openvla.checkpoint.statistics import FILE
from services.openvla.model.vision import published_name
from services.openvla.training.network import TrainableOpenVLA
from vla_common.volume import replace_directory
from vla_modelkit.checkpoint import ADAPTER, ADAPTER_WEIGHTS, RECORD, file_hash, weight_files, write_record

LORA = "lora_adapter"
COPIED = ("*.json", "*.py", "tokenizer.model")


def write(
    directory: Path,
    base: Path,
    model: TrainableOpenVLA,
    step: int,
    statistics: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> Path:
    """Write the checkpoint atomically and return its directory.

    statistics: of dataset_statistics.json; provenance: settings, data and base, stored in the record.
    """

    def fill(draft: Path) -> None:
        for path in (path for pattern in COPIED for path in base.glob(pattern)):
            if path.name not in (RECORD, FILE):
                shutil.copyfile(path, draft / path.name)
        (draft / FILE).write_text(json.dumps(statistics, indent=2) + "\n", encoding="utf-8")
        merged = {published_name(name): value.cpu() for name, value in model.merged().items()}
        for name, value in merged.items():
            if not torch.isfinite(value).all():
                raise ValueError(f"{name} is not finite after training; try a lower --learning-rate")
        for path in weight_files(base):
            _merge_file(path, draft / path.name, merged)
        for part in PARTS if model.has_l1_head else ():
            tensors = {name.removeprefix(f"{part}."): v for name, v in merged.items() if name.startswith(f"{part}.")}
            torch.save(tensors, draft / f"{part}--{step}_checkpoint.pt")
        (draft / LORA).mkdir()
        save_file(model.adapter(), draft / LORA / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        (draft / LORA / ADAPTER_WEIGHTS).chmod(0o644)  # a container may run as another user
        configuration = model.lora.to_dict() | {"base_model_name_or_path": provenance["base"]}
        configuration["target_modules"] = sorted(configuration["target_modules"])
        (draft / LORA / ADAPTER).write_text(json.dumps(configuration, indent=2) + "\n", encoding="utf-8")
        files = (path for path in sorted(draft.rglob("*")) if path.is_file())
        hashes = {path.relative_to(draft).as_posix(): file_hash(path) for path in files}
        images = {"images": provenance["images"]} if model.has_l1_head else {}
        write_record(draft, f"finetuned-{directory.name}", str(step), hashes, **images, finetuned=provenance)

    return replace_directory(directory, fill)


def _merge_file(source: Path, target: Path, merged: Mapping[str, Tensor]) -> None:
    """Copy a file of weights, with the merged tensors in the base's dtype."""
    with safe_open(str(source), framework="pt", device="cpu") as stored:
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    for name in tensors.keys() & merged.keys():
        tensors[name] = merged[name].to(tensors[name].dtype).contiguous()
    save_file(tensors, str(target), metadata={"format": "pt"})
    target.chmod(0o644)
