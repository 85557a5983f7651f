"""Cache of a data set's decoded and downscaled images: later trainings on the same videos start immediately.

A cache file holds raw bytes under datasets/ on the volume, is named by the videos' digest, and is memory-mapped, so
processes share it. On a full disk the training decodes the videos again and continues.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vla_common.regular_files import open_regular
from vla_common.volume import Volume, make_directory_without_links, require_space
from vla_datasets import metadata
from vla_datasets.errors import DatasetError

DIRECTORY, LOCK, SUFFIX = ".pictures", "lock", ".rgb"
MAX_BYTES = 5 * 10**9  # of all cache files; the least recently used ones are removed first
SPARE = 2**28  # bytes of disk space that stay free
FORMAT_VERSION = b"1"  # change it whenever `small` or the byte order changes
OnEpisode = Callable[[int, int], None]  # done, total


def images_of(dataset: Any, episodes: Sequence[Any], keys: Sequence[str], side: int, on_episode: OnEpisode) -> Tensor:
    """Return the images of the cameras `keys` for all steps of the episodes: uint8 [N, C, 3, side, side]."""
    shape = (sum(episode.length for episode in episodes), len(keys), 3, side, side)
    path = Volume().path("datasets") / DIRECTORY / f"{digest(dataset, episodes, keys, side)}{SUFFIX}"

    def decoded() -> Iterator[Tensor]:
        for done, episode in enumerate(episodes, 1):
            yield of_episode(dataset, episode, keys, side)
            on_episode(done, len(episodes))

    size = math.prod(shape)
    try:
        is_cached = path.exists() and path.stat().st_size == size
        if is_cached or write_cache(path, size, decoded):
            with suppress(OSError):  # owned by another user, or a read-only volume
                os.utime(path)  # marks it as used
            on_episode(len(episodes), len(episodes))
            return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).view(shape)
    except OSError as error:
        print(f"decoded images are not cached: {error.strerror or error}", flush=True)
    return torch.cat(list(decoded()))


def digest(dataset: Any, episodes: Sequence[Any], keys: Sequence[str], side: int) -> str:
    """Return 32 hex digits of the videos' bytes and of the selected episodes, cameras and size."""
    sha256 = hashlib.sha256(
        FORMAT_VERSION + repr((side, tuple(keys), [(episode.index, episode.length) for episode in episodes])).encode()
    )
    for path in dict.fromkeys(dataset.images_path(episode.index, key) for episode in episodes for key in keys):
        try:
            with open_regular(path) as file:
                while part := file.read(2**24):
                    sha256.update(part)
        except FileNotFoundError:
            continue  # decoding reports the missing file
        except OSError as error:
            raise metadata.unreadable(path, error, "images of a data set") from error
    return sha256.hexdigest()[:32]


def write_cache(path: Path, size: int, parts: Callable[[], Iterator[Tensor]]) -> bool:
    """Write the cache file atomically; return False if another process is writing one.

    Raises OSError if the disk is full.
    """
    draft = make_directory_without_links(path.parent) / f".{path.name}"
    with (path.parent / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
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


def evict(directory: Path, size: int) -> None:
    """Remove interrupted drafts, and the least recently used files until `size` more bytes fit into MAX_BYTES."""
    for draft in directory.glob(f".*{SUFFIX}"):
        draft.unlink()
    files = sorted(directory.glob(f"[!.]*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
    total = size + sum(path.stat().st_size for path in files)
    for path in files:
        if total <= MAX_BYTES:
            break
        total -= path.stat().st_size
        path.unlink()  # processes that have mapped it keep their mapping


def of_episode(dataset: Any, episode: Any, keys: Sequence[str], side: int) -> Tensor:
    """Decode an episode: uint8 [T, C, 3, side, side]. Raises DatasetError if a video's length differs from it."""
    seen = [small(dataset.frames(episode.index, key), side) for key in keys]
    if any(len(images) != episode.length for images in seen):
        counts = [len(images) for images in seen]
        raise DatasetError(f"{dataset.name}, episode {episode.index}: {counts} frames; expected {episode.length} each")
    return torch.stack(seen, 1).contiguous()


def small(images: np.ndarray, side: int) -> Tensor:
    """Downscale images uint8 [n, H, W, 3] with antialiasing to uint8 [n, 3, side, side]."""
    x = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float()
    x = functional.interpolate(x, (side, side), mode="bilinear", antialias=True, align_corners=False)
    return x.round().clamp(0, 255).to(torch.uint8)
