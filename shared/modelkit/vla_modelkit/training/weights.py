"""Weight files of a training run: written atomically, ordered by number, checked before loading.

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
IMPORTED = "imported.json"  # in a run's directory: the names of its imported files


class DamagedFileError(ValueError):
    """A file that cannot be read: truncated, or not a weights file."""


@dataclass(frozen=True)
class WeightFiles:
    """The weight files of one run. needed: the required keys."""

    directory: Path
    prefix: str
    needed: frozenset[str] = frozenset({"model_state_dict", "epoch", "global_step"})

    def path(self, epoch: int, batches: int = 0) -> Path:
        """Return the path of the state after an epoch or, with `batches`, after that many batches of it."""
        part = f"_{batches:06d}" if batches else ""
        return self.directory / f"{self.prefix}_{epoch:02d}{part}.pt"

    def all(self) -> list[Path]:
        """Return the files, oldest first, by number: epoch 10 comes after epoch 9."""
        numbered = ((number, path) for path in self.directory.glob("*.pt") if (number := self._number(path)))
        return [path for _, path in sorted(numbered)]

    def _number(self, path: Path) -> tuple[float, float] | None:
        match = re.fullmatch(rf"{re.escape(self.prefix)}_(\d+)(?:_(\d+))?\.pt", path.name)
        # a complete epoch is later than its parts
        return (int(match[1]), int(match[2]) if match[2] else math.inf) if match else None

    def imported(self) -> frozenset[str]:
        """Return the names of the imported files, which no run overwrites or removes."""
        try:
            return frozenset(json.loads((self.directory / IMPORTED).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return frozenset()

    def latest(self) -> Path | None:
        """Return the newest file, or None."""
        return next(reversed(self.all()), None)

    def save(self, path: Path, state: State, keep: int = 0) -> None:
        """Write a state, then remove older parts of epochs, and all but the last `keep` epochs (0: keep all).

        Epochs before the state's `first_epoch` and imported files are kept: no run can create them again.
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
        complete = [other for other in older if other not in parts and self._number(other) >= first]
        for other in parts + (complete[: max(0, len(complete) - keep + 1)] if keep else []):
            other.unlink()

    def load(self, path: Path, device: torch.device | str = "cpu") -> State:
        """Load a state without executing code. Raises DamagedFileError, or ValueError for a missing file."""
        state = load_state(path, device)
        if missing := self.needed - set(state):
            raise DamagedFileError(f"{path} has no {', '.join(sorted(missing))}: it is not a weights file of this lab")
        return state

    def load_latest(self, device: torch.device | str = "cpu") -> tuple[Path, State] | None:
        """Return the newest readable state, printing unreadable ones; None if there are no files.

        Raises DamagedFileError if no file can be read.
        """
        files = self.all()
        for path in reversed(files):
            try:
                return path, self.load(path, device)
            except DamagedFileError as error:
                print(f"{error}; loading the previous file", file=sys.stderr, flush=True)
        if files:
            raise DamagedFileError(
                f"none of the {len(files)} weight files in {self.directory} can be read; remove them to start over"
            )
        return None

    def load_for_resume(self, preload: str, device: torch.device | str = "cpu") -> tuple[Path, State] | None:
        """Return the state to resume from: "latest", the number of an epoch ("7"), or None for "none".

        Raises ValueError if the run would overwrite an imported file.
        """
        if preload == "latest":
            checkpoint = self.load_latest(device)
            return checkpoint and self._resume_from(*checkpoint)
        if preload == "none":
            if newest := self.latest():
                raise ValueError(
                    f"preload is none, but {self.directory} has weights up to {newest.name}; choose another --name"
                )
            return None
        return self._resume_from(*self.load_epoch(int(preload), device))

    def load_epoch(self, epoch: int, device: torch.device | str = "cpu") -> tuple[Path, State]:
        """Return the state after an epoch, counted from 0. Raises ValueError if it does not exist."""
        path = self.path(epoch)
        if not path.exists():
            names = ", ".join(file.name for file in self.all()) or "no weights"
            raise ValueError(f"{path.name} not found; {self.directory} has {names}")
        return path, self.load(path, device)

    def _resume_from(self, path: Path, state: State) -> tuple[Path, State]:
        files = self.all()
        later = [other.name for other in files[files.index(path) + 1 :] if other.name in self.imported()]
        if later:
            raise ValueError(
                f"a run resumed from {path.name} would overwrite {later[-1]}, which was imported; resume from that one "
                "with --preload latest, or choose another --name"
            )
        return path, state


def load_state(path: Path, device: torch.device | str = "cpu") -> State:
    """Load a dictionary written by torch.save without executing code. Raises like `WeightFiles.load`."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError as error:
        raise ValueError(f"weights file {path} not found") from error
    except Exception as error:  # a damaged file fails anywhere in zip, pickle or tensor code
        line = (str(error) or type(error).__name__).splitlines()[0]
        raise DamagedFileError(f"{path} cannot be read ({line})") from error
    if not isinstance(state, dict):
        raise DamagedFileError(f"{path} contains a {type(state).__name__}; expected the dictionary of a training run")
    return state
