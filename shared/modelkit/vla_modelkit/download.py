"""Download a published checkpoint or data set from the hub: by revision, resumable, checked by sha256.

The hub's address and token are huggingface_hub's own settings ($HF_ENDPOINT, $HF_TOKEN, $HF_HUB_OFFLINE).
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from vla_common.durations import format_duration
from vla_common.volume import display_path, make_directory_without_links, require_space
from vla_contract.protocol.tokens import check_token
from vla_modelkit import hub
from vla_modelkit.checkpoint import CheckpointError, changed_files, file_hash, read_record, update_record, write_record

SPARE = 2**30  # bytes to leave free
TORCH_WEIGHTS = "pytorch_model.bin"
MEASURED_S = 15.0  # until then a download's speed is not representative
MIN_BYTES = 10**6  # to estimate a speed
LONG_S = 600.0  # shorter downloads print no estimate
AT_ONCE = 8  # parallel downloads of a data set, most of whose files are small
PROGRESS_LINES = 10  # of a data set
RESUME = "run the command again with network access, it resumes"
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
    record = read_record(directory)
    if record and record.get("repo") != repo and not force:
        raise CheckpointError(f"{directory} contains {record.get('repo')}; choose another --name for {repo}")
    is_complete = record and revision in ("main", record.get("revision")) and not changed_files(directory, record)
    if is_complete and not force:
        print(f"{display_path(directory)} is complete already")
        update_record(directory, **more)
        return
    commit, files = listing(repo, revision, directory, patterns, check)
    missing = [file for file in files if not _has(directory, file)]
    size = sum(file.size for file in missing)
    require_space(directory, size + SPARE + sum(file.size for file in missing if file.name == TORCH_WEIGHTS))
    print(f"{repo} at {commit}: {len(missing)} of {len(files)} files, {size / 1e9:.1f} GB to download", flush=True)
    make_directory_without_links(directory)
    with announced(directory, size):
        # largest first: small files say nothing about the bandwidth
        for file in sorted(missing, key=lambda file: -file.size):
            _download(repo, commit, file, directory)
    hashes = {file.name: _checked(file, directory) for file in files}
    if TORCH_WEIGHTS in hashes:
        from vla_modelkit.weights import convert_to_safetensors  # imports torch

        del hashes[TORCH_WEIGHTS]
        converted = convert_to_safetensors(directory / TORCH_WEIGHTS)
        hashes[converted.name] = file_hash(converted)
    write_record(directory, repo, commit, hashes, **more)


def listing(
    repo: str, revision: str, directory: Path, patterns: Sequence[str], check: Check
) -> tuple[str, list[RemoteFile]]:
    """Return (commit, required files). Raises CheckpointError, also if the repository is another model's."""
    from huggingface_hub import HfApi, get_token

    check_token("the hub's token (HF_TOKEN)", get_token() or "")
    alternative = f"without network, copy {directory} from another machine or create a checkpoint with --tiny"
    with _hub_errors(repo, f"{repo} at {revision}", alternative):
        info = HfApi().model_info(repo, revision=revision, files_metadata=True)
    siblings = info.siblings or []
    check(f"{repo} at {revision}", (sibling.rfilename for sibling in siblings))
    files = [
        RemoteFile(sibling.rfilename, sibling.size or 0, sibling.lfs.sha256 if sibling.lfs else None)
        for sibling in siblings
        if any(
            fnmatch(sibling.rfilename, pattern) and sibling.rfilename.count("/") == pattern.count("/")
            for pattern in patterns
        )
    ]
    if any(file.name.endswith(".safetensors") for file in files):
        files = [file for file in files if file.name != TORCH_WEIGHTS]
    elif "*.safetensors" in patterns and not any(file.name == TORCH_WEIGHTS for file in files):
        also = f" and no {TORCH_WEIGHTS}" if TORCH_WEIGHTS in patterns else ""
        raise CheckpointError(f"{repo} at {revision} has no *.safetensors{also}; expected a checkpoint")
    if not files:
        raise CheckpointError(f"{repo} at {revision} has none of {', '.join(patterns)}")
    return str(info.sha), files


def fetch_data(repo: str, below: str, directory: Path, revision: str = "main") -> Path:
    """Download the directory `below` of a data repository ("": all of it) to `directory`; return that path.

    An incomplete download stays next to it and is resumed. Raises CheckpointError if the hub cannot be reached, has no
    such directory, or sent files with a wrong sha256; VolumeError without space.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.hf_api import RepoFile

    if directory.exists():
        print(f"{display_path(directory)} exists already")
        return directory
    name = f"{repo}/{below}".rstrip("/")
    check_token("the hub's token (HF_TOKEN)", get_token() or "")
    if reason := hub.unreachable(refresh=True):
        raise CheckpointError(f"{repo} was not downloaded: {reason}; {RESUME}")
    with _hub_errors(repo, name):  # one directory's files: some repositories have many data sets
        commit = str(HfApi().dataset_info(repo, revision=revision, expand=["sha"]).sha)
        tree = HfApi().list_repo_tree(repo, below or None, recursive=True, revision=commit, repo_type="dataset")
        entries = [entry for entry in tree if isinstance(entry, RepoFile)]
    files = [RemoteFile(entry.path, entry.size, entry.lfs.sha256 if entry.lfs else None) for entry in entries]
    if not any(file.name.endswith("meta/info.json") for file in files):
        raise CheckpointError(f"{name} has no meta/info.json; expected a data set in LeRobot's layout")
    stage = directory.with_name(f".{directory.name}.download")
    missing = [file for file in files if not _has(stage, file)]
    size, every = sum(file.size for file in missing), -(-len(missing) // PROGRESS_LINES)
    print(f"{name} at {commit}: {len(missing)} of {len(files)} files, {size / 1e9:.2f} GB to download", flush=True)
    require_space(directory, size + SPARE)
    make_directory_without_links(stage)

    def download(file: RemoteFile) -> None:
        _download(repo, commit, file, stage, "dataset")
        _checked(file, stage)

    with announced(stage, size), ThreadPoolExecutor(AT_ONCE) as pool:
        for count, _ in enumerate(pool.map(download, missing), 1):
            if count % every == 0 and count < len(missing):
                print(f"{count} of {len(missing)} files", flush=True)
    (stage / below).rename(directory) if below else stage.rename(directory)
    shutil.rmtree(stage, ignore_errors=True)
    shutil.rmtree(directory / ".cache", ignore_errors=True)  # of huggingface_hub
    return directory


def _has(directory: Path, file: RemoteFile) -> bool:
    path = directory / file.name
    return path.is_file() and path.stat().st_size == file.size


def _download(repo: str, commit: str, file: RemoteFile, directory: Path, kind: str = "model") -> None:
    from huggingface_hub import hf_hub_download

    with _hub_errors(repo, f"{file.name} of {repo}"):
        hf_hub_download(repo, file.name, repo_type=kind, revision=commit, local_dir=directory)


def _checked(file: RemoteFile, directory: Path) -> str:
    """Return a file's sha256. Raises CheckpointError if it is not the hub's, and removes the file."""
    path = directory / file.name
    sha256 = file_hash(path)
    if file.sha256 not in (None, sha256):
        path.unlink()
        expected = f"{file.name} has sha256 {sha256}, the hub says {file.sha256}"
        raise CheckpointError(f"{expected}; it was removed: run the command again")
    return sha256


@contextmanager
def _hub_errors(repo: str, label: str, next_step: str = RESUME) -> Iterator[None]:
    """Raise CheckpointError for the hub's errors. label: what is listed or downloaded."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    httpx = sys.modules.get("httpx")  # if huggingface_hub imported it; older versions use requests, whose are OSErrors
    connection_errors = (OSError, httpx.TransportError) if httpx else (OSError,)
    try:
        yield
    except GatedRepoError as error:
        raise CheckpointError(
            f"{repo} is gated: accept its terms at huggingface.co/{repo}, create a token at "
            "huggingface.co/settings/tokens, and run the command again with HF_TOKEN=TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(f"the hub has no repository {repo!r}, or it requires a token ($HF_TOKEN)") from error
    except EntryNotFoundError as error:
        hint = "look at the repository's files for its name"
        raise CheckpointError(f"the hub has no directory or file {label!r}; {hint}") from error
    except (HfHubHTTPError, OfflineModeIsEnabled, *connection_errors) as error:
        line = " ".join(str(error).split())[:300] or type(error).__name__
        reached = "the hub refused it" if isinstance(error, HfHubHTTPError) else "the hub cannot be reached"
        raise CheckpointError(f"{label} was not downloaded, {reached}: {line}; {next_step}") from error


@contextmanager
def announced(directory: Path, total: int) -> Iterator[None]:
    """Within this context, print the expected duration of a download of `total` bytes if it is long."""
    ended, began, before = threading.Event(), time.monotonic(), written(directory)

    def watch() -> None:
        while not ended.wait(MEASURED_S):
            if (come := written(directory) - before) >= MIN_BYTES:
                if line := estimate(total, come, time.monotonic() - began):
                    print(line, flush=True)
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def estimate(total: int, come: int, seconds: float) -> str | None:
    """Return the message after `come` of `total` bytes in `seconds`, None for a short download."""
    left_s = (total - come) * seconds / come
    if left_s <= LONG_S:
        return None
    speed = come / seconds / 1e6
    return f"this will take about {format_duration(left_s)} more at {speed:.1f} MB/s; the same command resumes it"


def written(directory: Path) -> int:
    """Return the bytes in a directory, including unfinished files; a preallocated file counts what is in it."""
    total = 0
    for path in directory.rglob("*"):
        try:
            status = path.lstat()
        except OSError:  # renamed just now
            continue
        total += min(status.st_size, status.st_blocks * 512)
    return total
