"""A checkpoint folder: where it lies, its JSON and weight files, and its manifest.

The manifest, checkpoint.json, says what the folder was made from, with the sha256 of every file.
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
ADAPTER = "adapter_config.json"  # of peft: a fine-tuning without the model
_CHUNK = 8 * 2**20


class CheckpointError(ValueError):
    """A checkpoint cannot be used as it is; the text says what is wrong and what to do."""


def find_directory(name: str, variable: str, how_to_get: str, volume: Volume | None = None) -> Path:
    """Returns the folder that `name` means: a path, else a folder under checkpoints/ on the volume.

    Raises CheckpointError with the checkpoints there are, or how to get one; `variable` may name one as well.
    """
    if name and Path(name).expanduser().is_dir():
        return Path(name).expanduser().absolute()
    there = (volume or Volume()).path("checkpoints")
    known = sorted(path.parent.name for path in there.glob("*/config.json"))
    if not name:
        found = f"on the volume: {', '.join(known)}" if known else f"none is on the volume; {how_to_get}"
        raise CheckpointError(f"no checkpoint named: give --checkpoint or set {variable}; {found}")
    if (there / name).is_dir() and Path(name).name == name:
        return there / name
    listed = did_you_mean(name, known) if known else f"; {there} holds no checkpoint"
    raise CheckpointError(f"checkpoint {name!r} not found{listed}; {how_to_get}")


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object. Raises CheckpointError where the file is missing or holds something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; {_expected(path)}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not JSON: {explain(path, error)}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}, no object; download the checkpoint again")
    return value


def _expected(path: Path) -> str:
    """Return what to do about a missing file of a checkpoint, from what its directory holds instead."""
    directory = path.parent
    if path.name == "config.json" and (directory / ADAPTER).is_file():
        base = read_json(directory / ADAPTER).get("base_model_name_or_path") or "its base model"
        return (
            f"{directory} is a LoRA adapter of {base} without that model: merge it first (peft: "
            "PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(directory)) and give the "
            "directory of the merged model"
        )
    if path.name == "config.json" and (inner := sorted(directory.glob("*/config.json"))):
        return f"the checkpoint is one level deeper: give {inner[0].parent}"
    if path.name != "config.json" and (directory / "config.json").is_file():
        return f"copy {path.name} from the checkpoint that this one was fine-tuned from, or download it again"
    return (
        "a checkpoint is a directory with config.json, *.safetensors and tokenizer files: get one with "
        "`./lab checkpoint`"
    )


def weight_files(directory: Path) -> list[Path]:
    """Returns the files that hold the weights, sorted. Raises CheckpointError where one is missing."""
    if (directory / INDEX).is_file():
        shards = sorted(set(read_json(directory / INDEX).get("weight_map", {}).values()))
        if any("/" in shard or not shard.endswith(".safetensors") for shard in shards):
            raise CheckpointError(f"{directory / INDEX} names files that are no shards beside it")
        missing = [shard for shard in shards if not (directory / shard).is_file()]
        if missing:
            raise CheckpointError(
                f"{directory} lacks {len(missing)} of {len(shards)} weight files: {', '.join(missing)}; "
                "run the download again, it goes on where it stopped"
            )
        return [directory / shard for shard in shards]
    if (directory / SINGLE).is_file():
        return [directory / SINGLE]
    raise CheckpointError(
        f"{directory} has no weights ({SINGLE}, or {INDEX} with its files); expected a checkpoint in "
        "safetensors: run the download again, or convert *.bin files"
    )


def write_record(directory: Path, repo: str, revision: str, hashes: Mapping[str, str], **more: Any) -> None:
    """Writes the manifest of a complete folder; `hashes` is file name -> sha256, `more` what its service will ask."""
    files = {name: {"sha256": hashes[name], "size": (directory / name).stat().st_size} for name in sorted(hashes)}
    record = {"repo": repo, "revision": revision, "sha256": weights_hash(hashes), "files": files}
    (directory / RECORD).write_text(json.dumps(record | more, indent=2) + "\n", encoding="utf-8")


def update_record(directory: Path, **more: Any) -> None:
    """Puts `more` into the manifest, and prints what that changes."""
    record = read_record(directory)
    changed = {name: value for name, value in more.items() if record.get(name) != value}
    for name, value in changed.items():
        print(f"{RECORD}: {name} is {value!r}, was {record.get(name)!r}")
    if changed:
        (directory / RECORD).write_text(json.dumps(record | changed, indent=2) + "\n", encoding="utf-8")


def read_record(directory: Path) -> dict[str, Any]:
    """Returns the manifest, empty where there is none. Raises CheckpointError."""
    return read_json(directory / RECORD) if (directory / RECORD).is_file() else {}


def identity(directory: Path, record: Mapping[str, Any] | None = None) -> Checkpoint:
    """Returns what a folder holds: from its manifest where the files' sizes still agree, else hashed now."""
    record = read_record(directory) if record is None else record
    if changed := changed_files(directory, record):
        raise CheckpointError(
            f"{directory} has changed since it was made ({', '.join(changed[:4])}); run `./lab checkpoint` again, "
            f"or remove {RECORD} if the change is yours"
        )
    sha256 = record.get("sha256") or weights_hash({path.name: file_hash(path) for path in weight_files(directory)})
    return Checkpoint(record.get("repo", directory.name), record.get("revision", "local"), sha256)


def changed_files(directory: Path, record: Mapping) -> list[str]:
    """Returns the recorded files that are missing or have another size."""
    return [
        name
        for name, file in record.get("files", {}).items()
        if not (directory / name).is_file() or (directory / name).stat().st_size != file["size"]
    ]


def weights_hash(hashes: Mapping[str, str]) -> str:
    """Returns one sha256 over the names and hashes of all weight files."""
    lines = (f"{hashes[name]}  {name}\n" for name in sorted(hashes) if name.endswith(".safetensors"))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def file_hash(path: Path) -> str:
    """Returns the sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_CHUNK):
            digest.update(block)
    return digest.hexdigest()
