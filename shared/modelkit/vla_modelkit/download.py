"""Download a published checkpoint from the hub: by revision, resumable, checked by sha256.

The hub's address and token are huggingface_hub's own settings ($HF_ENDPOINT, $HF_TOKEN, $HF_HUB_OFFLINE).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from vla_common.volume import display_path, make_directory_without_links, require_space
from vla_contract.protocol.tokens import check_token
from vla_modelkit import pace
from vla_modelkit.checkpoint import CheckpointError, changed_files, file_hash, read_record, update_record, write_record

SPARE = 2**30  # bytes to leave free
TORCH_WEIGHTS = "pytorch_model.bin"
Check = Callable[[str, Iterable[str]], None]  # (label, names of all files); raises CheckpointError


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
    patterns: Sequence[str],
    force: bool = False,
    check: Check = lambda label, names: None,
    **more: Any,
) -> None:
    """Download the missing files of a repository's revision into `directory` and write its manifest, with `more`.

    patterns: the required files. Weights in a single pytorch_model.bin, if `patterns` name it and there are no
    *.safetensors, are stored as model.safetensors. Complete files are kept, partial ones resumed. Raises
    CheckpointError if the hub cannot be reached, has no such revision, or sent files with a wrong sha256; VolumeError
    without space.
    """
    if not force and is_complete(directory, repo, revision):
        print(f"{display_path(directory)} is complete already")
        update_record(directory, **more)
        return
    commit, files = listing(repo, revision, directory, patterns, check)
    missing = [file for file in files if not _has(directory, file)]
    size = sum(file.size for file in missing)
    require_space(directory, size + SPARE + sum(file.size for file in missing if file.name == TORCH_WEIGHTS))
    print(f"{repo} at {commit}: {len(missing)} of {len(files)} files, {size / 1e9:.1f} GB to download", flush=True)
    make_directory_without_links(directory)
    with pace.announced(directory, size):
        # largest first: small files say nothing about the bandwidth
        for file in sorted(missing, key=lambda file: -file.size):
            _download(repo, commit, file, directory)
    hashes = _checked(files, directory)
    if TORCH_WEIGHTS in hashes:
        from vla_modelkit.weights import convert_to_safetensors  # imports torch

        del hashes[TORCH_WEIGHTS]
        converted = convert_to_safetensors(directory / TORCH_WEIGHTS)
        hashes[converted.name] = file_hash(converted)
    write_record(directory, repo, commit, hashes, **more)


def is_complete(directory: Path, repo: str, revision: str) -> bool:
    """Return whether the manifest is of this repository and revision, and the files have their sizes."""
    record = read_record(directory)
    if record and record.get("repo") != repo:
        raise CheckpointError(f"{directory} contains {record.get('repo')}; choose another --name for {repo}")
    return bool(record) and revision in ("main", record.get("revision")) and not changed_files(directory, record)


def listing(
    repo: str, revision: str, directory: Path, patterns: Sequence[str], check: Check
) -> tuple[str, list[RemoteFile]]:
    """Return (commit, required files). Raises CheckpointError, also if the repository is another model's."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

    check_token("the hub's token (HF_TOKEN)", get_token() or "")
    try:
        info = HfApi().model_info(repo, revision=revision, files_metadata=True)
    except GatedRepoError as error:
        raise CheckpointError(_gated(repo)) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(f"the hub has no repository {repo!r}, or it requires a token ($HF_TOKEN)") from error
    except HfHubHTTPError as error:
        raise CheckpointError(f"the hub refused {repo} at {revision}: {_line(error)}") from error
    except (*_connection_errors(), OfflineModeIsEnabled) as error:
        raise CheckpointError(
            f"{repo} cannot be downloaded, the hub cannot be reached for {revision}: {_line(error)}; without "
            f"network, copy {directory} from another machine or create a checkpoint with --tiny"
        ) from error
    check(f"{repo} at {revision}", (sibling.rfilename for sibling in info.siblings or []))
    files = [
        RemoteFile(sibling.rfilename, sibling.size or 0, sibling.lfs.sha256 if sibling.lfs else None)
        for sibling in info.siblings or []
        if any(_matches(sibling.rfilename, pattern) for pattern in patterns)
    ]
    if any(file.name.endswith(".safetensors") for file in files):
        files = [file for file in files if file.name != TORCH_WEIGHTS]
    elif "*.safetensors" in patterns and not any(file.name == TORCH_WEIGHTS for file in files):
        alternative = f" and no {TORCH_WEIGHTS}" if TORCH_WEIGHTS in patterns else ""
        raise CheckpointError(f"{repo} at {revision} has no *.safetensors{alternative}; expected a checkpoint")
    if not files:
        raise CheckpointError(f"{repo} at {revision} has none of {', '.join(patterns)}")
    return str(info.sha), files


def _matches(name: str, pattern: str) -> bool:
    return name.count("/") == pattern.count("/") and fnmatch(name, pattern)


def _has(directory: Path, file: RemoteFile) -> bool:
    path = directory / file.name
    return path.is_file() and path.stat().st_size == file.size


def _download(repo: str, commit: str, file: RemoteFile, directory: Path) -> None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

    try:
        hf_hub_download(repo, file.name, revision=commit, local_dir=directory)
    except GatedRepoError as error:
        raise CheckpointError(_gated(repo)) from error
    except (HfHubHTTPError, *_connection_errors()) as error:
        raise CheckpointError(
            f"{file.name} of {repo} was not downloaded: {_line(error)}; run the command again, it resumes"
        ) from error


def _connection_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a failed connection: requests' are OSErrors; huggingface_hub 1 has httpx's."""
    try:
        from httpx import TransportError
    except ImportError:
        return (OSError,)
    return (OSError, TransportError)


def _gated(repo: str) -> str:
    return (
        f"{repo} is gated: accept its terms at huggingface.co/{repo}, create a token at "
        "huggingface.co/settings/tokens, and run the command again with HF_TOKEN=TOKEN"
    )


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
