"""A data set's pictures, decoded once and kept: the next training on the same films begins at once.

They lie as plain bytes in one file below datasets/ on the volume, named by what the films hold, and are mapped, so that
processes share them. A disk without room for them costs the time, not the training.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vla_common.regular_files import open_regular
from vla_common.volume import Volume, make_own_directory, require_space
from vla_datasets import metadata
from vla_datasets.errors import DatasetError

DIRECTORY, LOCK, SUFFIX = ".pictures", "lock", ".rgb"
MAX_BYTES = 5 * 10**9  # bytes that are kept of all data sets: what was used longest ago goes first
SPARE = 2**28  # bytes that stay free
FORMAT_VERSION = b"1"  # another number where `small` or the order of the bytes changes
OnEpisode = Callable[[int, int], None]  # done, total


def images_of(dataset: Any, episodes: Sequence[Any], keys: Sequence[str], side: int, on_episode: OnEpisode) -> Tensor:
    """Return uint8 [N, C, 3, side, side]: each step of the episodes, as the cameras called `keys` show it."""
    shape = (sum(episode.length for episode in episodes), len(keys), 3, side, side)
    path = Volume().path("datasets") / DIRECTORY / f"{digest(dataset, episodes, keys, side)}{SUFFIX}"

    def decoded() -> Iterator[Tensor]:
        for done, episode in enumerate(episodes, 1):
            yield of_episode(dataset, episode, keys, side)
            on_episode(done, len(episodes))

    try:
        if is_cached(path, math.prod(shape)) or write_cache(path, math.prod(shape), decoded):
            on_episode(len(episodes), len(episodes))
            return torch.from_file(str(path), shared=False, size=math.prod(shape), dtype=torch.uint8).view(shape)
    except OSError as error:
        print(f"the films are decoded again next time: {error.strerror or error}", flush=True)
    return torch.cat(list(decoded()))


def digest(dataset: Any, episodes: Sequence[Any], keys: Sequence[str], side: int) -> str:
    """Return 32 hex digits of the films' own bytes and of what is taken from them."""
    sha256 = hashlib.sha256(
        FORMAT_VERSION + repr((side, tuple(keys), [(episode.index, episode.length) for episode in episodes])).encode()
    )
    for path in dict.fromkeys(dataset.pictures_path(episode.index, key) for episode in episodes for key in keys):
        try:
            with open_regular(path) as file:
                while part := file.read(2**24):
                    sha256.update(part)
        except FileNotFoundError:
            continue  # whoever decodes it says which one is missing
        except OSError as error:
            raise metadata.unreadable(path, error, "images of a data set") from error
    return sha256.hexdigest()[:32]


def is_cached(path: Path, size: int) -> bool:
    """Return whether the file is there and whole; from now on it counts as used."""
    try:
        complete = path.stat().st_size == size
    except FileNotFoundError:
        return False
    with suppress(OSError):  # of another user, or on a volume that is read only
        os.utime(path)
    return complete


def write_cache(path: Path, size: int, parts: Callable[[], Iterator[Tensor]]) -> bool:
    """Write the file, whole or not at all; return False where another process is writing one.

    Raises OSError where there is no room.
    """
    draft = make_own_directory(path.parent) / f".{path.name}"
    with exclusive_lock(path.parent) as locked:
        if not locked:
            return False
        evict(path.parent, size)
        require_space(path, size + SPARE)
        try:
            with draft.open("xb") as file:
                for part in parts():
                    file.write(part.numpy().data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    return True


@contextmanager
def exclusive_lock(directory: Path) -> Iterator[bool]:
    """Yield whether no other process writes in a folder; until the end none will."""
    with (directory / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def evict(directory: Path, size: int) -> None:
    """Remove drafts that were interrupted, and the files used longest ago until `size` bytes more are `MOST`."""
    for draft in directory.glob(f".*{SUFFIX}"):
        draft.unlink()
    files = sorted(directory.glob(f"[!.]*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
    total = size + sum(path.stat().st_size for path in files)
    for path in files:
        if total <= MAX_BYTES:
            break
        total -= path.stat().st_size
        path.unlink()  # who has it mapped keeps it


def of_episode(dataset: Any, episode: Any, keys: Sequence[str], side: int) -> Tensor:
    """Return uint8 [T, C, 3, side, side]. Raises DatasetError for films that are not as long as the episode."""
    seen = [small(dataset.frames(episode.index, key), side) for key in keys]
    if any(len(images) != episode.length for images in seen):
        counts = [len(images) for images in seen]
        raise DatasetError(
            f"{dataset.name}, episode {episode.index}: films of {counts} pictures; expected {episode.length} each"
        )
    return torch.stack(seen, 1).contiguous()


def small(images: np.ndarray, side: int) -> Tensor:
    """Return uint8 [n, 3, side, side] of pictures uint8 [n, H, W, 3], averaged over what becomes one pixel."""
    x = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float()
    x = functional.interpolate(x, (side, side), mode="bilinear", antialias=True, align_corners=False)
    return x.round().clamp(0, 255).to(torch.uint8)
