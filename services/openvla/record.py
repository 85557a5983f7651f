"""checkpoint.json: what a checkpoint folder was made from, with the sha256 of every file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from services.openvla.errors import CheckpointError, read_json
from vla_contract.info import Checkpoint

RECORD = "checkpoint.json"
_CHUNK = 8 * 2**20


def write_record(folder: Path, repo: str, revision: str, hashes: Mapping[str, str]) -> None:
    """Writes the record of a complete folder; `hashes` is file name -> sha256."""
    files = {name: {"sha256": hashes[name], "size": (folder / name).stat().st_size} for name in sorted(hashes)}
    record = {"repo": repo, "revision": revision, "sha256": weights_hash(hashes), "files": files}
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def identity(folder: Path) -> Checkpoint:
    """Returns what a folder holds: from its record where the files' sizes still agree, else hashed now."""
    record = read_json(folder / RECORD) if (folder / RECORD).is_file() else None
    if record is None:
        return Checkpoint(folder.name, "local", weights_hash({p.name: file_hash(p) for p in weight_files(folder)}))
    if changed := changed_files(folder, record):
        raise CheckpointError(
            f"{folder} has changed since it was made ({', '.join(changed[:4])}); run `./lab checkpoint openvla` again, "
            f"or remove {RECORD} if the change is yours"
        )
    return Checkpoint(record["repo"], record["revision"], record["sha256"])


def changed_files(folder: Path, record: Mapping) -> list[str]:
    """Returns the recorded files that are missing or have another size."""
    return [
        name
        for name, facts in record["files"].items()
        if not (folder / name).is_file() or (folder / name).stat().st_size != facts["size"]
    ]


def weight_files(folder: Path) -> list[Path]:
    """Returns the files that hold weights, sorted."""
    return sorted(folder.glob("*.safetensors"))


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
