"""A published checkpoint from the model hub to a folder: pinned, resumed, checked by sha256.

The hub's address and token are huggingface_hub's own settings ($HF_ENDPOINT, $HF_TOKEN, $HF_HUB_OFFLINE).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from services.openvla.errors import CheckpointError, read_json
from services.openvla.others import refuse_other_files
from services.openvla.record import RECORD, changed_files, file_hash, write_record
from vla_contract.volume import make_own_folder, require_space

# suite -> (repository, commit). OpenVLA's authors published one fine-tuned model per suite.
REPOSITORIES: Mapping[str, tuple[str, str]] = {
    "libero_spatial": ("openvla/openvla-7b-finetuned-libero-spatial", "962318cec55ac10993ff0f5f43eda9a270b4c873"),
    "libero_object": ("openvla/openvla-7b-finetuned-libero-object", "287d6cfdf12d07b1449505f66d9bf3550257e9b3"),
    "libero_goal": ("openvla/openvla-7b-finetuned-libero-goal", "fa5ae1e7509348889295bba8e08621d8b55e9baf"),
    "libero_10": ("openvla/openvla-7b-finetuned-libero-10", "80970322773f81baa2e22fe495d0487b93a05cfa"),
}
BASE = ("openvla/openvla-7b", "47a0ec7fc4ec123775a391911046cf33cf9ed83f")  # the model they were made from, with code
WANTED = ("*.json", "*.safetensors", "tokenizer.model", "*.py")
SPARE = 2**30  # bytes that stay free beside the checkpoint


@dataclass(frozen=True)
class RemoteFile:
    """One file of a repository; `sha256` is known for large files."""

    name: str
    size: int
    sha256: str | None


def pinned(suite: str = "", repo: str = "") -> tuple[str, str]:
    """Returns (repository, revision): a suite's published checkpoint, or another repository ("main" if not known)."""
    if suite:
        return REPOSITORIES[suite]
    return repo, dict([*REPOSITORIES.values(), BASE]).get(repo, "main")


def fetch(repo: str, revision: str, folder: Path, force: bool = False) -> None:
    """Downloads what is missing of a repository's revision into `folder` and records it.

    Files that are complete stay; one that was cut off goes on where it stopped. Raises CheckpointError where the hub
    cannot be reached, has no such revision, or gave bytes that are not what it promised; VolumeError where space is
    short.
    """
    if not force and is_complete(folder, repo, revision):
        print(f"{folder} is complete already")
        return
    commit, files = listing(repo, revision)
    missing = [one for one in files if not _has(folder, one)]
    size = sum(one.size for one in missing)
    require_space(folder, size + SPARE)
    print(f"{repo} at {commit}: {len(missing)} of {len(files)} files, {size / 1e9:.1f} GB to download", flush=True)
    make_own_folder(folder)
    for one in missing:
        _download(repo, commit, one, folder)
    write_record(folder, repo, commit, _checked(files, folder))


def is_complete(folder: Path, repo: str, revision: str) -> bool:
    """Returns whether the folder's record is of this repository and revision, and its files still have their sizes."""
    if not (folder / RECORD).is_file():
        return False
    record = read_json(folder / RECORD)
    if record.get("repo") != repo:
        raise CheckpointError(f"{folder} holds {record.get('repo')}; choose another --name for {repo}")
    return revision in ("main", record.get("revision")) and not changed_files(folder, record)


def listing(repo: str, revision: str) -> tuple[str, list[RemoteFile]]:
    """Returns (commit, the files that a checkpoint needs). Raises CheckpointError, for another model's listing too."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

    try:
        info = HfApi().model_info(repo, revision=revision, files_metadata=True)
    except RepositoryNotFoundError as error:
        raise CheckpointError(f"the hub has no repository {repo!r}, or it asks for a token ($HF_TOKEN)") from error
    except HfHubHTTPError as error:
        raise CheckpointError(f"the hub refused {repo} at {revision}: {_line(error)}") from error
    except (OSError, OfflineModeIsEnabled) as error:
        raise CheckpointError(
            f"the hub cannot be reached for {repo}: {_line(error)}; on a machine without network copy the folder from "
            "one that has it into checkpoints/ on the volume, or make a checkpoint with --tiny"
        ) from error
    refuse_other_files(f"{repo} at {revision}", (one.rfilename for one in info.siblings or []))
    files = [
        RemoteFile(one.rfilename, one.size or 0, one.lfs.sha256 if one.lfs else None)
        for one in info.siblings or []
        if any(fnmatch(one.rfilename, pattern) for pattern in WANTED) and "/" not in one.rfilename
    ]
    if not any(one.name.endswith(".safetensors") for one in files):
        raise CheckpointError(f"{repo} at {revision} holds no *.safetensors; expected an OpenVLA checkpoint")
    return str(info.sha), files


def _has(folder: Path, file: RemoteFile) -> bool:
    path = folder / file.name
    return path.is_file() and path.stat().st_size == file.size


def _download(repo: str, commit: str, file: RemoteFile, folder: Path) -> None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        hf_hub_download(repo, file.name, revision=commit, local_dir=folder)
    except (HfHubHTTPError, OSError) as error:
        raise CheckpointError(
            f"{file.name} of {repo} was not downloaded: {_line(error)}; run the command again, it goes on where it "
            "stopped"
        ) from error


def _checked(files: list[RemoteFile], folder: Path) -> dict[str, str]:
    hashes = {}
    for one in files:
        hashes[one.name] = file_hash(folder / one.name)
        if one.sha256 is not None and hashes[one.name] != one.sha256:
            (folder / one.name).unlink()
            raise CheckpointError(
                f"{one.name} has sha256 {hashes[one.name]}, the hub says {one.sha256}; it was removed: run the command "
                "again"
            )
    return hashes


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
