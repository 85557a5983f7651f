"""A data set of whichever layout, by its place or its name on the volume."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from vla_common.volume import Volume
from vla_datasets import metadata
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset

if TYPE_CHECKING:
    from vla_datasets.hdf5 import LiberoFiles


def open_dataset(folder: str | Path) -> LeRobotDataset | LiberoFiles:
    """Returns the data set in a folder, or of one HDF5 file. Raises DatasetError for what is none."""
    folder = Path(folder).expanduser().absolute()
    if not folder.exists():
        raise DatasetError(f"{folder} is not there; expected a data set's folder")
    if (folder / "meta").is_dir():
        return LeRobotDataset(folder)
    from vla_datasets import hdf5  # h5py is loaded where it is needed

    if hdf5.files(folder):
        return hdf5.LiberoFiles(folder)
    raise DatasetError(f"{folder} is no data set; expected LeRobot's {metadata.INFO} or LIBERO's *.hdf5 in it")


def find(name: str, volume: Volume | None = None) -> Path:
    """Returns where a data set lies that a person named: under datasets/ on the volume, or a path.

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
