"""One departure, and the list of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """What is wrong, where. `row` counts from 0 in tables and films, from 1 in lines of text; None: all of the file.

    grave: a reader fails on it or learns something wrong; else it only costs time or concerns few readers.
    """

    file: str
    row: int | None
    words: str
    grave: bool = True

    def __str__(self) -> str:
        where = self.file if self.row is None else f"{self.file}, row {self.row}"
        return f"{'' if self.grave else 'note: '}{where}: {self.words}"


@dataclass
class Findings:
    """The faults of one data set, found so far."""

    folder: Path
    all: list[Fault] = field(default_factory=list)

    def add(self, file: Path | str, row: int | None, words: str, grave: bool = True) -> None:
        """Adds a fault; `file` is named from the data set's folder on."""
        path = Path(file)
        name = path.relative_to(self.folder) if path.is_absolute() and path.is_relative_to(self.folder) else path
        self.all.append(Fault(str(name), row, words, grave))

    def note(self, file: Path | str, row: int | None, words: str) -> None:
        """Adds what is no grave one."""
        self.add(file, row, words, grave=False)

    def error(self, file: Path | str, error: Exception) -> None:
        """Adds what a reader says of a file."""
        words = str(error).replace(f"{self.folder}/", "")
        at = str(file).removeprefix(f"{self.folder}/")
        self.add(file, None, words.removeprefix(f"{at}: ").removeprefix(f"{at} "))
