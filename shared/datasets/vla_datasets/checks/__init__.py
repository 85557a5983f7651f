"""Check a whole data set against what its readers require.

`faults(directory)` reads every row and decodes every frame. It writes nothing and raises no error for a bad data set:
each problem becomes a DatasetFault with file, row and message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vla_datasets.statistics import as_rows


@dataclass(frozen=True)
class DatasetFault:
    """A problem and its location. `row` counts from 0 in tables and videos, from 1 in lines of text; None: the file.

    grave: a reader fails on it or learns from wrong data; else it only costs time or affects few readers.
    """

    file: str
    row: int | None
    message: str
    grave: bool = True

    def __str__(self) -> str:
        location = self.file if self.row is None else f"{self.file}, row {self.row}"
        return f"{'' if self.grave else 'note: '}{location}: {self.message}"


@dataclass
class Findings:
    """The faults of one data set, found so far. first_row: of the episode that is being checked, in its file."""

    directory: Path
    first_row: int = field(default=0, init=False)
    all: list[DatasetFault] = field(default_factory=list)

    def add(self, file: Path | str, message: str, row: int | None = None, grave: bool = True) -> None:
        """Add a fault; `file` is named from the data set's directory on."""
        name = str(file).removeprefix(f"{self.directory}/")
        self.all.append(DatasetFault(name, row if row is None else row + self.first_row, message, grave))

    def note(self, file: Path | str, message: str, row: int | None = None) -> None:
        """Add a fault that is not grave."""
        self.add(file, message, row, grave=False)

    def not_finite(self, file: Path | str, name: str, values: np.ndarray) -> None:
        """Add a fault where a column of floats [T, …] holds a NaN or an infinity."""
        if values.dtype.kind == "f":
            odd = np.flatnonzero(~np.isfinite(as_rows(values)).all(axis=1))
            if len(odd):
                self.add(file, f"{name} contains NaN or infinity in {len(odd)} rows", int(odd[0]))

    def error(self, file: Path | str, error: Exception) -> None:
        """Add a reader's error about a file."""
        message = str(error).replace(f"{self.directory}/", "")
        name = str(file).removeprefix(f"{self.directory}/")
        self.add(file, message.removeprefix(f"{name}: ").removeprefix(f"{name} "))


def faults(directory: Path | str, tick: Callable[[int, int], None] = lambda done, of: None) -> list[DatasetFault]:
    """Return the faults of a data set of either layout, file by file; empty for a valid one.

    tick(done, of) is called before each episode.
    """
    from vla_datasets import hdf5  # here: they load h5py and FFmpeg
    from vla_datasets.checks import demos, lerobot

    directory = Path(directory).expanduser().absolute()
    if not directory.exists():
        return [DatasetFault(str(directory), None, "not found; expected a data set's directory")]
    findings = Findings(directory)
    if not (directory / "meta").is_dir() and hdf5.files(directory):
        demos.check(findings, tick)
    else:
        lerobot.check(findings, tick)
    return findings.all
