"""The result of a run: the base's checkpoint with merged weights, the adapter next to it, ready to serve.

The layout is the one that openvla-oft publishes: `lora_adapter/`, and `action_head--N_checkpoint.pt` with
`proprio_projector--N_checkpoint.pt` for an L1 head.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from services.openvla.checkpoint.adapter import BASE_SHA256, LORA, copy_files
from services.openvla.checkpoint.oft import PARTS
from services.openvla.checkpoint.statistics import FILE
from services.openvla.model.vision import published_name
from services.openvla.training.network import TrainableOpenVLA
from vla_common.volume import replace_directory
from vla_modelkit.checkpoint import ADAPTER, ADAPTER_WEIGHTS, RECORD, record_directory, weight_files
from vla_modelkit.weights import rewrite_weights


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
        heads = {path.name for path in base.glob("*_checkpoint.pt")}  # the trained ones are written below
        copy_files(base, draft, leave_out={RECORD, FILE, *heads})
        (draft / FILE).write_text(json.dumps(statistics, indent=2) + "\n", encoding="utf-8")
        merged = {published_name(name): value.cpu() for name, value in model.merged().items()}
        for path in weight_files(base):
            rewrite_weights(path, draft / path.name, merged.keys(), lambda name, _: merged[name])
        for part in PARTS if model.has_l1_head else ():
            tensors = {name.removeprefix(f"{part}."): v for name, v in merged.items() if name.startswith(f"{part}.")}
            torch.save(tensors, draft / f"{part}--{step}_checkpoint.pt")
        (draft / LORA).mkdir()
        metadata = {"format": "pt", BASE_SHA256: provenance["base_sha256"]}
        save_file(model.adapter(), draft / LORA / ADAPTER_WEIGHTS, metadata=metadata)
        (draft / LORA / ADAPTER_WEIGHTS).chmod(0o644)  # a container may run as another user
        configuration = model.lora.to_dict() | {"base_model_name_or_path": provenance["base"]}
        configuration["target_modules"] = sorted(configuration["target_modules"])
        (draft / LORA / ADAPTER).write_text(json.dumps(configuration, indent=2) + "\n", encoding="utf-8")
        images = {"images": provenance["images"]} if model.has_l1_head else {}
        record_directory(draft, f"finetuned-{directory.name}", str(step), **images, finetuned=provenance)

    return replace_directory(directory, fill)
