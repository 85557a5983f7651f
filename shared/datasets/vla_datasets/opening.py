"""A data set of either layout, by its path or its name on the volume."""

from __future__ import annotations

import difflib
from pathlib import Path

from vla_common.volume import Volume
from vla_datasets import metadata
from vla_datasets.dataset import Dataset
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset


def open_dataset(directory: str | Path) -> Dataset:
    """Return the data set in a directory, or of one HDF5 file. Raises DatasetError for anything else."""
    directory = Path(directory).expanduser().absolute()
    if not directory.exists():
        raise DatasetError(f"{directory} is not there; expected a data set's folder")
    if (directory / "meta").is_dir():
        return LeRobotDataset(directory)
    from vla_datasets import hdf5  # h5py is loaded where it is needed

    if hdf5.files(directory):
        return hdf5.LiberoFiles(directory)
    raise DatasetError(f"{directory} is no data set; expected LeRobot's {metadata.INFO} or LIBERO's *.hdf5 in it")


def find(name: str, volume: Volume | None = None) -> Path:
    """Return the path of a data set: under datasets/ on the volume, or a path itself.

    Raises DatasetError with the nearest name.
    """
    root = (volume or Volume()).path("datasets")
    for path in (root / name, Path(name).expanduser()):
        if name and path.exists():
            return path.absolute()
    known = sorted(path.name for path in root.glob("[!.]*"))
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"there {'are ' + ', '.join(known) if known else 'is none'}"
    raise DatasetError(f"data set {name!r} is neither on the volume nor a path; {hint}")
