"""A checkpoint directory: its path, JSON and weight files, and manifest.

The manifest, checkpoint.json, records the source and the sha256 of every file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vla_common.unreadable import explain
from vla_common.volume import Volume
from vla_contract.protocol.errors import did_you_mean
from vla_contract.protocol.info import Checkpoint

RECORD = "checkpoint.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # peft: an adapter without its base model
_CHUNK = 8 * 2**20


class CheckpointError(ValueError):
    """A checkpoint cannot be used as it is; the message has the next step."""


def find_directory(name: str, variable: str, hint: str, volume: Volume | None = None) -> Path:
    """Return a checkpoint's directory, from its path or its name under checkpoints/ on the volume.

    variable: the setting that can also name it. Raises CheckpointError with the existing checkpoints, or `hint`.
    """
    if name and Path(name).expanduser().is_dir():
        return Path(name).expanduser().absolute()
    root = (volume or Volume()).path("checkpoints")
    names = sorted(path.parent.name for path in root.glob("*/config.json"))
    if not name:
        available = f"on the volume: {', '.join(names)}" if names else f"the volume has none; {hint}"
        raise CheckpointError(f"no checkpoint selected: give --checkpoint or set {variable}; {available}")
    if (root / name).is_dir() and Path(name).name == name:
        return root / name
    listed = did_you_mean(name, names) if names else f"; {root} has no checkpoint"
    raise CheckpointError(f"checkpoint {name!r} not found{listed}; {hint}")


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object. Raises CheckpointError where the file is missing or holds something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; {_expected(path)}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not JSON: {explain(path, error)}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} contains a {type(value).__name__}, not an object; download the checkpoint again")
    return value


def _expected(path: Path) -> str:
    """Return the next step for a missing file, from the content of its directory."""
    directory = path.parent
    if path.name != "config.json" and (directory / "config.json").is_file():
        return f"copy {path.name} from the checkpoint that this one was fine-tuned from, or download it again"
    adapters = [root for root in (directory, directory / "lora_adapter") if (root / ADAPTER).is_file()]
    if path.name == "config.json" and adapters:
        base = read_json(adapters[0] / ADAPTER).get("base_model_name_or_path") or "its base model"
        return (
            f"{adapters[0]} is a LoRA adapter of {base} without that model: merge it first (OpenVLA: ./lab checkpoint "
            f"openvla --merge {directory}; other models: peft's merge_and_unload) and give the merged directory"
        )
    if path.name == "config.json" and (inner := sorted(directory.glob("*/config.json"))):
        return f"the checkpoint is one level deeper: give {inner[0].parent}"
    content = "config.json, *.safetensors and tokenizer files"
    return f"a checkpoint is a directory with {content}: get one with `./lab checkpoint`"


def weight_files(directory: Path) -> list[Path]:
    """Return the files that hold the weights, sorted. Raises CheckpointError where one is missing."""
    if (directory / INDEX).is_file():
        shards = sorted(set(read_json(directory / INDEX).get("weight_map", {}).values()))
        if any("/" in shard or not shard.endswith(".safetensors") for shard in shards):
            raise CheckpointError(f"{directory / INDEX} names files that are not shards in its directory")
        missing = [shard for shard in shards if not (directory / shard).is_file()]
        if missing:
            raise CheckpointError(
                f"{directory} lacks {len(missing)} of {len(shards)} weight files: {', '.join(missing)}; "
                "run the download again, it resumes"
            )
        return [directory / shard for shard in shards]
    if (directory / SINGLE).is_file():
        return [directory / SINGLE]
    raise CheckpointError(
        f"{directory} has no weights ({SINGLE}, or {INDEX} with its files); expected a checkpoint in "
        "safetensors: run the download again, or convert *.bin files"
    )


def write_record(directory: Path, repo: str, revision: str, hashes: Mapping[str, str], **more: Any) -> None:
    """Write the manifest of a complete directory; `hashes`: sha256 by file name; `more`: for its service."""
    files = {name: {"sha256": hashes[name], "size": (directory / name).stat().st_size} for name in sorted(hashes)}
    record = {"repo": repo, "revision": revision, "sha256": weights_hash(hashes), "files": files}
    (directory / RECORD).write_text(json.dumps(record | more, indent=2) + "\n", encoding="utf-8")


def record_directory(directory: Path, repo: str, revision: str, **more: Any) -> None:
    """Write the manifest of all files that a directory and its subdirectories have."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    write_record(
        directory, repo, revision, {path.relative_to(directory).as_posix(): file_hash(path) for path in files}, **more
    )


def update_record(directory: Path, **more: Any) -> None:
    """Add `more` to the manifest and print the changes."""
    record = read_record(directory)
    changed = {name: value for name, value in more.items() if record.get(name) != value}
    for name, value in changed.items():
        print(f"{RECORD}: {name} is {value!r}, was {record.get(name)!r}")
    if changed:
        (directory / RECORD).write_text(json.dumps(record | changed, indent=2) + "\n", encoding="utf-8")


def read_record(directory: Path) -> dict[str, Any]:
    """Return the manifest, empty if it does not exist. Raises CheckpointError."""
    return read_json(directory / RECORD) if (directory / RECORD).is_file() else {}


def identity(directory: Path, record: Mapping[str, Any] | None = None) -> Checkpoint:
    """Return a checkpoint's identity: from its manifest if the files' sizes match it, else by hashing."""
    record = read_record(directory) if record is None else record
    if changed := changed_files(directory, record):
        raise CheckpointError(
            f"{directory} has changed since it was made ({', '.join(changed[:4])}); run `./lab checkpoint` again, "
            f"or remove {RECORD} if the change is yours"
        )
    files = [*weight_files(directory), *directory.glob("*.pt")]
    sha256 = record.get("sha256") or weights_hash({path.name: file_hash(path) for path in files})
    return Checkpoint(record.get("repo", directory.name), record.get("revision", "local"), sha256)


def changed_files(directory: Path, record: Mapping) -> list[str]:
    """Return the files of the manifest that are missing or have another size."""
    return [
        name
        for name, file in record.get("files", {}).items()
        if not (directory / name).is_file() or (directory / name).stat().st_size != file["size"]
    ]


def weights_hash(hashes: Mapping[str, str]) -> str:
    """Return one sha256 over the names and hashes of all weight files."""
    lines = (f"{hashes[name]}  {name}\n" for name in sorted(hashes) if name.endswith((".safetensors", ".pt")))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def file_hash(path: Path) -> str:
    """Return the sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_CHUNK):
            digest.update(block)
    return digest.hexdigest()
