"""A published checkpoint from the model hub to a folder: by revision, resumed, checked by sha256.

The hub's address and token are huggingface_hub's own settings ($HF_ENDPOINT, $HF_TOKEN, $HF_HUB_OFFLINE).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from vla_common.volume import make_own_directory, require_space, shown
from vla_contract.protocol.tokens import check_token
from vla_modelkit import pace
from vla_modelkit.checkpoint import CheckpointError, changed_files, file_hash, read_record, update_record, write_record

SPARE = 2**30  # bytes that stay free beside the checkpoint
Check = Callable[[str, Iterable[str]], None]  # (where, names of all its files); raises CheckpointError


@dataclass(frozen=True)
class RemoteFile:
    """One file of a repository; `sha256` is known for large files."""

    name: str
    size: int
    sha256: str | None


def fetch(
    repo: str,
    revision: str,
    directory: Path,
    wanted: Sequence[str],
    force: bool = False,
    check: Check = lambda where, names: None,
    **more: Any,
) -> None:
    """Downloads what is missing of a repository's revision into `folder` and records it, and `more`.

    wanted: patterns of the files that are needed. Files that are complete stay; one that was cut off goes on where it
    stopped. Raises CheckpointError where the hub cannot be reached, has no such revision, or gave bytes that are not
    what it promised; VolumeError where space is short.
    """
    if not force and is_complete(directory, repo, revision):
        print(f"{shown(directory)} is complete already")
        update_record(directory, **more)
        return
    commit, files = listing(repo, revision, directory, wanted, check)
    missing = [file for file in files if not _has(directory, file)]
    size = sum(one.size for one in missing)
    require_space(directory, size + SPARE)
    print(f"{repo} at {commit}: {len(missing)} of {len(files)} files, {size / 1e9:.1f} GB to download", flush=True)
    make_own_directory(directory)
    with pace.announced(directory, size):
        for one in sorted(missing, key=lambda one: -one.size):  # the pace of small files says nothing
            _download(repo, commit, one, directory)
    write_record(directory, repo, commit, _checked(files, directory), **more)


def is_complete(directory: Path, repo: str, revision: str) -> bool:
    """Returns whether the folder's record is of this repository and revision, and its files still have their sizes."""
    record = read_record(directory)
    if record and record.get("repo") != repo:
        raise CheckpointError(f"{directory} holds {record.get('repo')}; choose another --name for {repo}")
    return bool(record) and revision in ("main", record.get("revision")) and not changed_files(directory, record)


def listing(
    repo: str, revision: str, directory: Path, wanted: Sequence[str], check: Check
) -> tuple[str, list[RemoteFile]]:
    """Returns (commit, the files that a checkpoint needs). Raises CheckpointError, for another model's listing too."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

    check_token("the hub's token (HF_TOKEN)", get_token() or "")
    try:
        info = HfApi().model_info(repo, revision=revision, files_metadata=True)
    except RepositoryNotFoundError as error:
        raise CheckpointError(f"the hub has no repository {repo!r}, or it asks for a token ($HF_TOKEN)") from error
    except HfHubHTTPError as error:
        raise CheckpointError(f"the hub refused {repo} at {revision}: {_line(error)}") from error
    except (OSError, OfflineModeIsEnabled) as error:
        raise CheckpointError(
            f"{repo} cannot be downloaded, the hub cannot be reached for {revision}: {_line(error)}; on a machine "
            f"without network copy {directory} from one that has it, or make a checkpoint with --tiny"
        ) from error
    check(f"{repo} at {revision}", (one.rfilename for one in info.siblings or []))
    files = [
        RemoteFile(one.rfilename, one.size or 0, one.lfs.sha256 if one.lfs else None)
        for one in info.siblings or []
        if any(_matches(one.rfilename, pattern) for pattern in wanted)
    ]
    if not any(file.name.endswith(".safetensors") for file in files):
        raise CheckpointError(f"{repo} at {revision} holds no *.safetensors; expected a checkpoint")
    return str(info.sha), files


def _matches(name: str, pattern: str) -> bool:
    return name.count("/") == pattern.count("/") and fnmatch(name, pattern)


def _has(directory: Path, file: RemoteFile) -> bool:
    path = directory / file.name
    return path.is_file() and path.stat().st_size == file.size


def _download(repo: str, commit: str, file: RemoteFile, directory: Path) -> None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        hf_hub_download(repo, file.name, revision=commit, local_dir=directory)
    except (HfHubHTTPError, OSError) as error:
        raise CheckpointError(
            f"{file.name} of {repo} was not downloaded: {_line(error)}; run the command again, it goes on where it "
            "stopped"
        ) from error


def _checked(files: list[RemoteFile], directory: Path) -> dict[str, str]:
    hashes = {}
    for file in files:
        hashes[file.name] = file_hash(directory / file.name)
        if file.sha256 is not None and hashes[file.name] != file.sha256:
            (directory / file.name).unlink()
            raise CheckpointError(
                f"{file.name} has sha256 {hashes[file.name]}, the hub says {file.sha256}; it was removed: run the "
                "command again"
            )
    return hashes


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
