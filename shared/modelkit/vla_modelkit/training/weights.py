"""Weight files of a training run: written whole or not at all, found by their number, checked before they are loaded.

`model_07.pt` is the state after epoch 7 (the first is 0), `model_08_000123.pt` that after 123 batches of epoch 8.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

State = dict[str, Any]
IMPORTED = "imported.json"  # in a run's folder: which of its files were brought from elsewhere, by their names here


class DamagedFileError(ValueError):
    """A weights file that cannot be read: cut off, or no weights file at all."""


@dataclass(frozen=True)
class WeightFiles:
    """The weight files of one run. needed: the keys without which a file is none of this kind."""

    directory: Path
    prefix: str
    needed: frozenset[str] = frozenset({"model_state_dict", "epoch", "global_step"})

    def path(self, epoch: int, batches: int = 0) -> Path:
        """Returns the name of the state after an epoch or, with `batches`, of that many batches into it."""
        part = f"_{batches:06d}" if batches else ""
        return self.directory / f"{self.prefix}_{epoch:02d}{part}.pt"

    def all(self) -> list[Path]:
        """Returns the files, oldest first, by number: epoch 10 comes after epoch 9."""
        numbered = ((number, path) for path in self.directory.glob("*.pt") if (number := self._number(path)))
        return [path for _, path in sorted(numbered)]

    def _number(self, path: Path) -> tuple[float, float] | None:
        found = re.fullmatch(rf"{re.escape(self.prefix)}_(\d+)(?:_(\d+))?\.pt", path.name)
        # a whole epoch comes after its parts
        return (int(found[1]), int(found[2]) if found[2] else math.inf) if found else None

    def imported(self) -> frozenset[str]:
        """Returns the names of the files that were imported: no run writes over one or takes it away."""
        try:
            return frozenset(json.loads((self.directory / IMPORTED).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return frozenset()

    def latest(self) -> Path | None:
        """Returns the newest file, or None."""
        return next(reversed(self.all()), None)

    def save(self, path: Path, state: State, keep: int = 0) -> None:
        """Writes a state, then takes away what it makes old: parts of epochs, and all but `keep` epochs (0: none).

        Files of epochs before the state's `first_epoch`, and imported ones, stay: no run can make them again.
        """
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with fresh.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)
        files = self.all()
        older = [other for other in files[: files.index(path)] if other.name not in self.imported()]
        parts = [other for other in older if self._number(other)[1] != math.inf]
        first = (state.get("first_epoch", 0), 0)
        whole = [other for other in older if other not in parts and self._number(other) >= first]
        for other in parts + (whole[: max(0, len(whole) - keep + 1)] if keep else []):
            other.unlink()

    def load(self, path: Path, device: torch.device | str = "cpu") -> State:
        """Returns the state in a file; nothing in it can run code. Raises DamagedFileError, ValueError for none."""
        state = load_state(path, device)
        if missing := self.needed - set(state):
            raise DamagedFileError(f"{path} lacks {', '.join(sorted(missing))}: no weights file of this lab")
        return state

    def load_latest(self, device: torch.device | str = "cpu") -> tuple[Path, State] | None:
        """Returns the newest state that can be read, naming those that cannot; None where there are no files at all.

        Raises DamagedFileError when there are files and none can be read.
        """
        files = self.all()
        for path in reversed(files):
            try:
                return path, self.load(path, device)
            except DamagedFileError as error:
                print(f"{error}; taking the one before it", file=sys.stderr, flush=True)
        if files:
            raise DamagedFileError(
                f"none of the {len(files)} weight files in {self.directory} can be read; remove them to start anew"
            )
        return None

    def load_chosen(self, preload: str, device: torch.device | str = "cpu") -> tuple[Path, State] | None:
        """Returns what a run goes on from: "latest", an epoch's number as in "7", or None for "none".

        Raises ValueError where the run would come to write over an imported file.
        """
        if preload == "latest":
            found = self.load_latest(device)
            return found and self._go_on_from(*found)
        if preload == "none":
            if newest := self.latest():
                raise ValueError(
                    f"preload is none, but {self.directory} has weights up to {newest.name}; give another --name"
                )
            return None
        return self._go_on_from(*self.load_epoch(int(preload), device))

    def load_epoch(self, epoch: int, device: torch.device | str = "cpu") -> tuple[Path, State]:
        """Returns the state after an epoch, the first being 0. Raises ValueError where it is not there."""
        path = self.path(epoch)
        if not path.exists():
            known = ", ".join(file.name for file in self.all()) or "no weights"
            raise ValueError(f"{path.name} not found; {self.directory} has {known}")
        return path, self.load(path, device)

    def _go_on_from(self, path: Path, state: State) -> tuple[Path, State]:
        files = self.all()
        later = [other.name for other in files[files.index(path) + 1 :] if other.name in self.imported()]
        if later:
            raise ValueError(
                f"a run that goes on from {path.name} would write over {later[-1]}, which was imported; go on from it "
                "by --preload latest, or give another --name"
            )
        return path, state


def load_state(path: Path, device: torch.device | str = "cpu") -> State:
    """Returns the dictionary in a file of torch.save; nothing in it can run code. Raises as `WeightFiles.load` does."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError as error:
        raise ValueError(f"weights file {path} not found") from error
    except Exception as error:  # a damaged file fails anywhere in zip, pickle or tensor code
        line = (str(error) or type(error).__name__).splitlines()[0]
        raise DamagedFileError(f"{path} cannot be read ({line})") from error
    if not isinstance(state, dict):
        raise DamagedFileError(f"{path} holds a {type(state).__name__}, expected the dictionary of a training run")
    return state
