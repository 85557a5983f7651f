"""Merge a LoRA adapter into the checkpoint that it was trained on.

Upstream's training writes a directory with `lora_adapter/`, statistics and the parts of OpenVLA-OFT; the merged weights
only on request (openvla-oft's vla-scripts/merge_lora_weights_and_save.py). Merged into another base, or twice, an
adapter gives a model that moves and never succeeds (openvla#151).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Set
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from services.openvla.checkpoint.config import load_config
from services.openvla.checkpoint.published import BASE
from services.openvla.checkpoint.statistics import FILE
from vla_common.volume import replace_directory, require_space
from vla_modelkit.checkpoint import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    INDEX,
    RECORD,
    SINGLE,
    CheckpointError,
    identity,
    read_json,
    read_record,
    record_directory,
    weight_files,
)
from vla_modelkit.weights import rewrite_weights

LORA = "lora_adapter"
BASE_SHA256 = "base_sha256"  # in the metadata of ADAPTER_WEIGHTS
COPIED = ("*.json", "*.py", "tokenizer.model", "*_checkpoint.pt")
PREFIX, PAIR = "base_model.model.", (".lora_A.weight", ".lora_B.weight")  # of the names of peft's tensors
# Fields of adapter_config.json that change the sum base + scale · B A, with the values that do not.
PLAIN = {
    "peft_type": "LORA", "bias": "none", "use_dora": False, "fan_in_fan_out": False, "rank_pattern": {},
    "alpha_pattern": {}, "modules_to_save": None, "layer_replication": None, "lora_bias": False,
}  # fmt: skip


class Adapter:
    """The adapter in a directory or its subdirectory lora_adapter. Raises CheckpointError."""

    def __init__(self, source: Path):
        self.directory = source / LORA if (source / LORA / ADAPTER).is_file() else source
        self.config = read_json(self.directory / ADAPTER)
        self.trained_on = str(self.config.get("base_model_name_or_path") or "")
        for name, plain in PLAIN.items():
            if (value := self.config.get(name, plain)) != plain and value:
                raise CheckpointError(
                    f"{self.directory / ADAPTER}: {name} is {value!r}; expected {plain!r}: merge it with peft"
                )
        path = self.directory / ADAPTER_WEIGHTS
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; copy it, or save the adapter again with peft 0.7 or newer")
        with safe_open(str(path), framework="pt", device="cpu") as file:
            self.base_sha256 = (file.metadata() or {}).get(BASE_SHA256)
            self._tensors = {name.removeprefix(PREFIX): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        rank, alpha = self.config["r"], self.config["lora_alpha"]
        self._scale = alpha / (rank**0.5 if self.config.get("use_rslora") else rank)
        self.names = {
            name.removesuffix(end) + ".weight" for end in PAIR for name in self._tensors if name.endswith(end)
        }
        if other := next((name for name in self._tensors if not name.endswith(PAIR)), ""):
            raise CheckpointError(f"{path} has {other}; expected matrices of LoRA only: merge it with peft")

    def merge(self, name: str, weight: Tensor) -> Tensor:
        """Return a matrix of the base with the adapter's product added, float32. Raises CheckpointError for others."""
        a, b = (self._tensors.get(name.removesuffix(".weight") + end) for end in PAIR)
        if a is None or b is None or (len(b), a.shape[1]) != weight.shape or len(a) != b.shape[1]:
            raise CheckpointError(
                f"{self.directory} does not fit its base: {name} has shape {list(weight.shape)} there"
            )
        return weight.float() + b.float() @ a.float() * self._scale


def find_base(adapter: Adapter, checkpoints: Path) -> Path:
    """Return the checkpoint on the volume that an adapter names as its base. Raises CheckpointError."""
    for path in sorted(path.parent for path in checkpoints.glob("*/config.json")):
        if _names(path) & _components(adapter.trained_on):
            return path
    raise CheckpointError(
        f"{adapter.directory} was trained on {adapter.trained_on or 'an unnamed base'}, which is not on the volume; "
        "give --base (OpenVLA's: ./lab checkpoint openvla --suite base)"
    )


def check_base(adapter: Adapter, base: Path, sha256: str | None) -> None:
    """Raise CheckpointError if an adapter was trained on another checkpoint; `sha256`: of the base's weights.

    The lab's adapters state their base's sha256. Others state its name: one that is fine-tuned must have that name.
    """
    if adapter.base_sha256:
        if adapter.base_sha256 != sha256:
            raise CheckpointError(
                f"{base} is not the base of {adapter.directory}: its weights have sha256 {str(sha256)[:12]}…, those of "
                f"{adapter.trained_on} {adapter.base_sha256[:12]}…; give that checkpoint as --base"
            )
        return
    is_named = bool(_names(base) & _components(adapter.trained_on))
    is_original = BASE[0].rpartition("/")[2] in _components(adapter.trained_on)
    if (marks := _fine_tuned_marks(base)) and (is_original or not is_named):
        raise CheckpointError(
            f"{base} is fine-tuned already (it has {marks[0]}), and {adapter.directory} was trained on "
            f"{adapter.trained_on or 'an unnamed base'}: merged twice, a model never succeeds. Give the original as "
            f"--base, or, if this is it, its name as base_model_name_or_path in {ADAPTER}"
        )
    if not is_named:
        print(f"note: the adapter was trained on {adapter.trained_on or 'an unnamed base'}; merging into {base.name}")


def merge(source: Path, base: Path | None, target: Path) -> None:
    """Write a checkpoint: the base with the adapter of `source` merged in, and its statistics and further parts.

    base: None for the one that the adapter names, from the directory of `target`.

    Raises CheckpointError if `source` is incomplete or merged already, or the base is not its own.
    """
    if (source / INDEX).is_file() or (source / SINGLE).is_file():
        raise CheckpointError(f"{source} has merged weights already: ./lab up openvla --checkpoint {source}")
    if not (source / FILE).is_file():
        raise CheckpointError(f"{source} has no {FILE}; copy it from the run that trained the adapter")
    if target.exists():
        raise CheckpointError(f"{target} exists; give another --name, or delete it")
    adapter, record = Adapter(source), read_record(source)
    base = base or find_base(adapter, target.parent)
    origin = identity(base)
    check_base(adapter, base, origin.sha256)
    require_space(target, sum(path.stat().st_size for path in weight_files(base)))
    print(
        f"merging {adapter.directory} ({len(adapter.names)} matrices, rank {adapter.config['r']}) into {base}",
        flush=True,
    )

    def fill(draft: Path) -> None:
        copy_files(base, draft, leave_out={RECORD, FILE})
        copy_files(source, draft, leave_out={RECORD, ADAPTER})
        (draft / LORA).mkdir()
        for name in (ADAPTER, ADAPTER_WEIGHTS):
            shutil.copyfile(adapter.directory / name, draft / LORA / name)
        missing = set(adapter.names)
        for path in weight_files(base):
            missing -= rewrite_weights(path, draft / path.name, adapter.names, adapter.merge)
        if missing:
            raise CheckpointError(f"{base} lacks {len(missing)} matrices of the adapter, for example {min(missing)}")
        load_config(draft)
        named = {"repo": origin.repo, "revision": origin.revision, "sha256": origin.sha256}
        kept = {name: record[name] for name in ("images", "finetuned") if name in record}
        record_directory(draft, record.get("repo", source.name), record.get("revision", "local"), base=named, **kept)

    replace_directory(target, fill)


def copy_files(source: Path, target: Path, leave_out: Set[str]) -> None:
    """Copy all files of a checkpoint but its weights."""
    for path in (path for pattern in COPIED for path in source.glob(pattern)):
        if path.name not in leave_out:
            shutil.copyfile(path, target / path.name)


def _names(base: Path) -> set[str]:
    """Return the names of a checkpoint: its directory's, and its repository's."""
    return {base.name, str(read_record(base).get("repo", "")).rpartition("/")[2]} - {""}


def _components(name: str) -> set[str]:
    """Return the parts of a base's name: OWNER/NAME, a path, or one in the hub's cache (models--OWNER--NAME)."""
    parts = set(re.split(r"[/\s]", name))
    return parts | {part.rpartition("--")[2] for part in parts if part.startswith("models--")}


def _fine_tuned_marks(base: Path) -> list[str]:
    """Return the names of what only a fine-tuned checkpoint has."""
    record = read_record(base)
    if record.get("repo") == BASE[0]:
        return []
    files = [path.name for pattern in (FILE, "*_checkpoint.pt", LORA) for path in sorted(base.glob(pattern))]
    return files + [f"{name!r} in {RECORD}" for name in ("finetuned", "base") if name in record]
