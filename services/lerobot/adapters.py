"""Adapters that LeRobot trained with peft: adapter_config.json and adapter_model.safetensors, without a whole model."""

from __future__ import annotations

import json
import tempfile
import warnings
from pathlib import Path

import torch
from lerobot.policies.pretrained import PreTrainedPolicy
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file

from services.lerobot.checkpoint import build_policy, check_files
from services.lerobot.repositories import local_names
from vla_modelkit.checkpoint import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    RECORD,
    SINGLE,
    CheckpointError,
    file_hash,
    identity,
    read_json,
    read_record,
    write_record,
)

MERGED = "adapter"  # subdirectory of a merged adapter's own files


def merge(policy: PreTrainedPolicy, adapter: Path) -> PreTrainedPolicy:
    """Return a base policy with the adapter in a directory merged in. Raises CheckpointError if they do not fit."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peft warns of missing tensors, which are compared below
            adapted = PeftModel.from_pretrained(policy, adapter)
        state = get_peft_model_state_dict(adapted, save_embedding_layers=False)
        stored = load_file(adapter / ADAPTER_WEIGHTS)
        wrong = sorted(stored.keys() ^ state.keys()) or [
            name for name, tensor in state.items() if not tensor.cpu().equal(stored[name].to(tensor.dtype))
        ]
        if wrong:
            raise CheckpointError(f"{adapter} does not fit its base: {wrong[0]} (one of {len(wrong)} tensors)")
        with torch.no_grad():
            merged = adapted.merge_and_unload(safe_merge=True)
    except CheckpointError:
        raise
    except (KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{adapter} does not fit its base: {' '.join(str(error).split())[:300]}") from error
    merged.config.use_peft = False
    return merged


def merge_into_checkpoint(directory: Path, base: Path, remote_code: bool = False) -> None:
    """Turn the adapter in `directory` into a checkpoint: the base's weights with it merged in, and its own config.

    The adapter's own files move to the subdirectory `adapter`. Raises CheckpointError if it does not fit the base.
    """
    adapter, config = read_json(directory / ADAPTER), read_json(directory / "config.json")
    kind = read_json(base / "config.json").get("type")
    if kind != config.get("type"):
        raise CheckpointError(f"{directory} is an adapter of type {config.get('type')!r}; its base {base} has {kind!r}")
    if (directory / SINGLE).is_file() and not (directory / RECORD).is_file():
        raise CheckpointError(f"{directory} has both {SINGLE} and {ADAPTER}; remove the one that you do not mean")
    print(f"merging the adapter (rank {adapter.get('r')}, alpha {adapter.get('lora_alpha')}) into {base}", flush=True)
    with local_names(directory, check_files(directory, remote_code, base), base) as path:
        merged = merge(build_policy(path, base, "cpu"), directory)
    source, origin = read_record(directory), identity(base)
    with tempfile.TemporaryDirectory(prefix=".merged-", dir=directory) as draft:
        merged.save_pretrained(draft)
        (Path(draft) / SINGLE).replace(directory / SINGLE)
    (directory / "config.json").write_text(json.dumps({**config, "use_peft": False}, indent=4) + "\n")
    subdirectory = directory / MERGED
    subdirectory.mkdir(exist_ok=True)
    for path in directory.glob("adapter_*"):
        path.replace(subdirectory / path.name)
    files = [*directory.glob("*.json"), *directory.glob("*.safetensors"), *subdirectory.iterdir()]
    hashes = {path.relative_to(directory).as_posix(): file_hash(path) for path in files if path.name != RECORD}
    write_record(
        directory,
        source.get("repo", directory.name),
        source.get("revision", "local"),
        hashes,
        base={"repo": origin.repo, "revision": origin.revision, "sha256": origin.sha256},
    )
