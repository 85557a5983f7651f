"""A data set's scenes: rendered arrangements with free labels, in a file per episode that they were made from.

A file holds `instruction`, `cameras` [C], `images` uint8 [M, C, size, size, 3] turned by 180° as the videos are,
`state` [M, S], `places` [M, 2, 3]: the thing that the instruction names and the place it belongs to, in m,
`pixels` [M, C, 2, 2]: both in each image, x right and y down in [-1, 1], NaN outside, and `steps` [T, 2, 3]: both at
each step of the episode.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from vla_datasets.errors import DatasetError

DIRECTORY = "scenes"


def write(directory: Path, episode: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the scenes of an episode of the data set at `directory`, atomically."""
    path = directory / DIRECTORY / f"{episode:06}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    with draft.open("wb") as file:
        np.savez_compressed(file, **arrays)
    os.replace(draft, path)


def read(directory: Path, episodes: Iterable[int]) -> Iterable[dict[str, np.ndarray]]:
    """Yield the scenes of those episodes. Raises DatasetError for a missing or damaged file."""
    for episode in episodes:
        path = directory / DIRECTORY / f"{episode:06}.npz"
        try:
            with np.load(path, allow_pickle=False) as file:
                yield {name: file[name] for name in file.files}
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise DatasetError(f"{path} cannot be read ({error}); make the data set again") from error
