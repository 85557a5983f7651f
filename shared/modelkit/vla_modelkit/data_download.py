"""A data set from the hub: a folder of a repository, or all of it; size first, files side by side, resumed, checked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from vla_common.volume import make_own_directory, require_space, shown
from vla_contract.protocol.tokens import check_token
from vla_modelkit import hub, pace
from vla_modelkit.checkpoint import CheckpointError, file_hash
from vla_modelkit.download import SPARE, RemoteFile

AT_ONCE = 8  # files; most are small
KIND = "dataset"  # what the hub calls such a repository
TOLD = 10  # how often it is said how far it is


def fetch_data(repo: str, below: str, directory: Path, revision: str = "main") -> Path:
    """Returns `folder` with what lies under `below` in a repository of data ("": all of it).

    Until it is whole it lies beside that place, and files that are complete there stay. Raises CheckpointError where
    the hub cannot be reached, has no such folder, or gave other bytes than it promised; VolumeError without space.
    """
    if directory.exists():
        print(f"{shown(directory)} is there already")
        return directory
    commit, files = _listing(repo, below, revision)
    stage = directory.with_name(f".{directory.name}.download")
    missing = [file for file in files if not _has(stage, file)]
    size = sum(one.size for one in missing)
    name = f"{repo}/{below}".rstrip("/")
    print(f"{name} at {commit}: {len(missing)} of {len(files)} files, {size / 1e9:.2f} GB to download", flush=True)
    require_space(directory, size + SPARE)
    make_own_directory(stage)
    with pace.announced(stage, size), ThreadPoolExecutor(AT_ONCE) as pool:
        every = -(-len(missing) // TOLD)
        for count, _ in enumerate(pool.map(lambda one: _download(repo, commit, one, stage), missing), 1):
            if count % every == 0 and count < len(missing):
                print(f"{count} of {len(missing)} files", flush=True)
    (stage / below).rename(directory) if below else stage.rename(directory)
    shutil.rmtree(stage, ignore_errors=True)
    shutil.rmtree(directory / ".cache", ignore_errors=True)  # the client's own notes
    return directory


def _listing(repo: str, below: str, revision: str) -> tuple[str, list[RemoteFile]]:
    """Returns (commit, files). Of a repository with many data sets only the folder is listed."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.hf_api import RepoFile

    check_token("the hub's token (HF_TOKEN)", get_token() or "")
    if why := hub.unreachable(again=True):
        raise CheckpointError(f"{repo} was not downloaded: {why}; run the command again where the hub can be reached")
    with _told(f"{repo}/{below}".rstrip("/")):
        commit = HfApi().dataset_info(repo, revision=revision, expand=["sha"]).sha
        tree = HfApi().list_repo_tree(repo, below or None, recursive=True, revision=commit, repo_type=KIND)
        files = [RemoteFile(one.path, one.size, one.lfs.sha256 if one.lfs else None) for one in tree
                 if isinstance(one, RepoFile)]  # fmt: skip
    if not any(file.name.endswith("meta/info.json") for file in files):
        raise CheckpointError(f"{repo}/{below} holds no meta/info.json; expected a data set in LeRobot's layout")
    return str(commit), files


@contextmanager
def _told(what: str) -> Iterator[None]:
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

    try:
        yield
    except RepositoryNotFoundError as error:
        raise CheckpointError(f"the hub has no data set {what!r}, or it asks for a token ($HF_TOKEN)") from error
    except EntryNotFoundError as error:
        raise CheckpointError(f"the hub has no folder {what!r}; look at the repository's files for its name") from error
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        said = " ".join(str(error).split())[:300] or type(error).__name__
        raise CheckpointError(
            f"{what} was not downloaded: {said}; run the command again where the hub can be reached, it goes on where "
            "it stopped"
        ) from error


def _has(stage: Path, file: RemoteFile) -> bool:
    path = stage / file.name
    return path.is_file() and path.stat().st_size == file.size


def _download(repo: str, commit: str, file: RemoteFile, stage: Path) -> None:
    from huggingface_hub import hf_hub_download

    with _told(f"{file.name} of {repo}"):
        path = Path(hf_hub_download(repo, file.name, repo_type=KIND, revision=commit, local_dir=stage))
    if file.sha256 is not None and file_hash(path) != file.sha256:
        path.unlink()
        raise CheckpointError(
            f"{file.name} has another sha256 than the hub says; it was removed: run the command again"
        )
