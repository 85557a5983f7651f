"""Settings shared by all labs: options, checks and the paths of a run's files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from vla_common.options import Options, option
from vla_common.volume import Volume, make_directory_without_links

PYTHON = "python"  # a monolingual corpus: Python's reference manual
CORPORA = ("default", "opus_books", "lemon-mint", "reverse")


def corpus_option(help: str, *more: str) -> Any:
    """Return the field for a corpus. more: names of further corpora."""
    return option("default", help, kind="path or dataset", keywords=(*CORPORA, *more))


def pair_option(help: str, **more: Any) -> Any:
    """Return the field for a corpus's languages."""
    stated = {"pattern": r"[a-z]{2,}-[a-z]{2,}", "expected": "two languages, as in en-it", "metavar": "en-it"}
    return option(None, help, **stated, **more)


def data_option(default: str, help: str) -> Any:
    """Return the field for an image data set."""
    return option(default, help, kind="path or dataset", keywords=("digits", "sprites", "mnist"))


def name_option() -> Any:
    """Return the field for the run's name."""
    return option(None, "of the run", default_help="derived from the data", kind="directory name")


def preload_option() -> Any:
    """Return the field for the weights to resume from."""
    return option(
        "latest",
        "resume from: latest, an epoch's number, or none",
        pattern=r"\d+",
        expected="latest, none, or an epoch such as 7",
        keywords=("latest", "none"),
        metavar="WHICH",
    )


def keep_option() -> Any:
    """Return the field for the number of weight files to keep."""
    return option(3, "newest weight files to keep, 0 for all", "[0, inf)")


def trained_option(lab: str) -> Any:
    """Return the field for a trained run's name."""
    return option(None, "name of a trained run", default_help="the newest", kind="trained", keywords=(lab,))


def epoch_option(several: str) -> Any:
    """Return the field for a run's epoch. several: what happens with several epochs."""
    return option(
        None,
        f"weights after this epoch, counted from 0; several {several}",
        default_help="the newest",
        pattern=r"\d+(,\d+)*",
        expected="epochs such as 0,10,29",
        metavar="N,N",
    )


class RunSettings(Options):
    """Base of a lab's `Config`, a dataclass with `name` and `preload`.

    LAB: its name. FIXED: settings that a run's weights depend on; a resumed run must have the same.
    """

    LAB = ""
    FIXED: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise ValueError for a value outside its interval or choices, or an invalid name or `preload`."""
        if not re.fullmatch(r"[\w.-]+", self.name):
            raise ValueError(f"--name {self.name!r} is not a directory name; use letters, digits, '-', '_' and '.'")
        self.check_options()
        if self.preload not in ("latest", "none") and not self.preload.isdecimal():
            raise ValueError(f"invalid --preload {self.preload!r}; expected latest, none, or an epoch such as 7")

    @classmethod
    def of(cls, stored: Mapping[str, Any]):
        """Return the configuration of a weights file; unknown settings, of other versions, are ignored."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in stored.items() if name in names})

    def stored(self) -> dict[str, Any]:
        """Return the configuration as plain values for the weights file."""
        return asdict(self)

    def check_same_settings(self, stored: Mapping[str, Any], path: Path) -> None:
        """Raise ValueError if a run would resume with other settings than it was started with."""
        current = self.stored()
        differ = [name for name in self.FIXED if stored.get(name) != current[name]]
        if differ:
            previous, requested = (", ".join(f"{n} {side.get(n)}" for n in differ) for side in (stored, current))
            raise ValueError(f"{path} was trained with {previous}, requested: {requested}; use another --name")

    @classmethod
    def runs_directory(cls, volume: Volume) -> Path:
        """Return the directory of the lab's runs."""
        return volume.path("checkpoints") / cls.LAB

    def run_directory(self, volume: Volume) -> Path:
        """Return this run's directory; create it if needed."""
        return make_directory_without_links(self.runs_directory(volume) / self.name)

    def tensorboard_directory(self, volume: Volume) -> Path:
        """Return the directory of this run's curves; `./lab up tensorboard` shows all of logs/tensorboard."""
        return make_directory_without_links(volume.path("logs") / "tensorboard" / self.LAB / self.name)
