"""Find and open a data set of either layout."""

from __future__ import annotations

import difflib
from pathlib import Path

from vla_common.volume import Volume
from vla_datasets import lerobot, metadata
from vla_datasets.dataset import Dataset
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset


def open_dataset(directory: str | Path) -> Dataset:
    """Return the data set in a directory, or of one HDF5 file. Raises DatasetError for anything else."""
    directory = Path(directory).expanduser().absolute()
    if not directory.exists():
        raise DatasetError(f"{directory} not found; expected a data set's directory")
    if (directory / "meta").is_dir():
        return LeRobotDataset(directory)
    from vla_datasets import hdf5  # loads h5py

    if hdf5.files(directory):
        return hdf5.LiberoFiles(directory)
    if (directory / "meta_data").is_dir():
        raise DatasetError(f"{directory} is LeRobot v1.x; expected {', '.join(lerobot.VERSIONS)}: {lerobot.LIBRARY}")
    raise DatasetError(f"{directory} is not a data set; expected LeRobot's {metadata.INFO} or LIBERO's *.hdf5 in it")


def find(name: str, volume: Volume | None = None) -> Path:
    """Return the path of a data set, from its name under datasets/ on the volume or its path.

    Raises DatasetError with the closest name.
    """
    root = (volume or Volume()).path("datasets")
    for path in (root / name, Path(name).expanduser()):
        if name and path.exists():
            return path.absolute()
    names = sorted(path.name for path in root.glob("[!.]*"))
    close = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"the volume has {', '.join(names) or 'none'}"
    raise DatasetError(f"data set {name!r} not found on the volume or as a path; {hint}")
