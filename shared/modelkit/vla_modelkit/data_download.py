"""Download a data set from the hub, a whole repository or one directory: in parallel, resumable, checked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from vla_common.volume import display_path, make_directory_without_links, require_space
from vla_contract.protocol.tokens import check_token
from vla_modelkit import hub, pace
from vla_modelkit.checkpoint import CheckpointError, file_hash
from vla_modelkit.download import SPARE, RemoteFile

AT_ONCE = 8  # parallel downloads; most files are small
KIND = "dataset"  # what the hub calls such a repository
PROGRESS_LINES = 10  # progress lines of a download


def fetch_data(repo: str, below: str, directory: Path, revision: str = "main") -> Path:
    """Download the directory `below` of a data repository ("": all of it) to `directory`; return that path.

    An incomplete download stays next to it and is resumed. Raises CheckpointError if the hub cannot be reached, has no
    such directory, or sent files with a wrong sha256; VolumeError without space.
    """
    if directory.exists():
        print(f"{display_path(directory)} exists already")
        return directory
    commit, files = _listing(repo, below, revision)
    stage = directory.with_name(f".{directory.name}.download")
    missing = [file for file in files if not _has(stage, file)]
    size = sum(file.size for file in missing)
    name = f"{repo}/{below}".rstrip("/")
    print(f"{name} at {commit}: {len(missing)} of {len(files)} files, {size / 1e9:.2f} GB to download", flush=True)
    require_space(directory, size + SPARE)
    make_directory_without_links(stage)
    with pace.announced(stage, size), ThreadPoolExecutor(AT_ONCE) as pool:
        every = -(-len(missing) // PROGRESS_LINES)
        for count, _ in enumerate(pool.map(lambda file: _download(repo, commit, file, stage), missing), 1):
            if count % every == 0 and count < len(missing):
                print(f"{count} of {len(missing)} files", flush=True)
    (stage / below).rename(directory) if below else stage.rename(directory)
    shutil.rmtree(stage, ignore_errors=True)
    shutil.rmtree(directory / ".cache", ignore_errors=True)  # of huggingface_hub
    return directory


def _listing(repo: str, below: str, revision: str) -> tuple[str, list[RemoteFile]]:
    """Return (commit, files), listing only the directory of a repository with many data sets."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.hf_api import RepoFile

    check_token("the hub's token (HF_TOKEN)", get_token() or "")
    if reason := hub.unreachable(refresh=True):
        raise CheckpointError(f"{repo} was not downloaded: {reason}; run the command again with network access")
    with _hub_errors(f"{repo}/{below}".rstrip("/")):
        commit = HfApi().dataset_info(repo, revision=revision, expand=["sha"]).sha
        tree = HfApi().list_repo_tree(repo, below or None, recursive=True, revision=commit, repo_type=KIND)
        files = [RemoteFile(entry.path, entry.size, entry.lfs.sha256 if entry.lfs else None) for entry in tree
                 if isinstance(entry, RepoFile)]  # fmt: skip
    if not any(file.name.endswith("meta/info.json") for file in files):
        raise CheckpointError(f"{repo}/{below} has no meta/info.json; expected a data set in LeRobot's layout")
    return str(commit), files


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

    try:
        yield
    except RepositoryNotFoundError as error:
        raise CheckpointError(f"the hub has no data set {name!r}, or it requires a token ($HF_TOKEN)") from error
    except EntryNotFoundError as error:
        raise CheckpointError(
            f"the hub has no directory {name!r}; look at the repository's files for its name"
        ) from error
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        message = " ".join(str(error).split())[:300] or type(error).__name__
        raise CheckpointError(
            f"{name} was not downloaded: {message}; run the command again with network access, it resumes"
        ) from error


def _has(stage: Path, file: RemoteFile) -> bool:
    path = stage / file.name
    return path.is_file() and path.stat().st_size == file.size


def _download(repo: str, commit: str, file: RemoteFile, stage: Path) -> None:
    from huggingface_hub import hf_hub_download

    with _hub_errors(f"{file.name} of {repo}"):
        path = Path(hf_hub_download(repo, file.name, repo_type=KIND, revision=commit, local_dir=stage))
    if file.sha256 is not None and file_hash(path) != file.sha256:
        path.unlink()
        raise CheckpointError(f"{file.name} has a wrong sha256; it was removed: run the command again")
