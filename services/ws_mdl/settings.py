"""What the settings of every lab have in common: which values they may have, and where a run's files lie."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from vla_common.options import Options, option
from vla_common.volume import Volume, make_own_directory

PYTHON = "python"  # a corpus in one language: Python's reference
CORPORA = ("default", "opus_books", "lemon-mint", "reverse")


# --- options of several labs --------------------------------------------------------------------------------


def corpus_option(help: str, *more: str) -> Any:
    """Return the field of a lab that learns from a corpus. more: names of further corpora."""
    return option("default", help, kind="path or dataset", keywords=(*CORPORA, *more))


def pair_option(help: str, **more: Any) -> Any:
    """Return the field of a corpus's languages."""
    stated = {"pattern": r"[a-z]{2,}-[a-z]{2,}", "expected": "two languages, as in en-it", "metavar": "en-it"}
    return option(None, help, **stated, **more)


def data_option(default: str, help: str) -> Any:
    """Return the field of a lab that learns from images."""
    return option(default, help, kind="path or dataset", keywords=("digits", "sprites", "mnist"))


def name_option() -> Any:
    """Return the field of the run's name."""
    return option(None, "of the run", default_help="made of what is trained on", kind="directory name")


def preload_option() -> Any:
    """Return the field that says where a run goes on."""
    return option(
        "latest",
        "latest (go on from the newest weights), an epoch's number, or none",
        pattern=r"\d+",
        expected="latest, none, or an epoch such as 7",
        keywords=("latest", "none"),
        metavar="WHICH",
    )


def keep_option() -> Any:
    """Return the field that says how many weight files stay."""
    return option(3, "newest weight files to keep, 0 for all", "[0, inf)")


# --- options of what was trained ----------------------------------------------------------------------------


def trained_option(lab: str) -> Any:
    """Return the field of a trained run's name."""
    return option(None, "run that was trained", default_help="the one trained last", kind="trained", keywords=(lab,))


def epoch_option(several: str) -> Any:
    """Return the field that says which weights of a run. several: what happens where it names several epochs."""
    return option(
        None,
        f"weights after that epoch, the first being 0; several {several}",
        default_help="the newest",
        pattern=r"\d+(,\d+)*",
        expected="epochs such as 0,10,29",
        metavar="N,N",
    )


# --- settings -----------------------------------------------------------------------------------------------


class RunSettings(Options):
    """Base of a lab's `Config`, a dataclass with `name` and `preload`.

    LAB: its name. FIXED: what a run's weights depend on, so that a run that goes on must not differ in it.
    """

    LAB = ""
    FIXED: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises ValueError for a value outside its interval or choices, and for an invalid name or `preload`."""
        if not re.fullmatch(r"[\w.-]+", self.name):
            raise ValueError(f"name {self.name!r} cannot name a folder; use letters, digits, '-', '_' and '.'")
        self.check_options()
        if self.preload not in ("latest", "none") and not self.preload.isdecimal():
            raise ValueError(f"preload {self.preload!r} is not known; expected latest, none, or an epoch such as 7")

    @classmethod
    def of(cls, stored: Mapping[str, Any]):
        """Returns the configuration that a weights file holds; settings of other versions are left out."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in stored.items() if name in known})

    def stored(self) -> dict[str, Any]:
        """Returns the configuration as plain values for a weights file."""
        return asdict(self)

    def refuse_drift(self, stored: Mapping[str, Any], path: Path) -> None:
        """Raises ValueError naming both sides where a run would go on under other settings than it began with."""
        ours = self.stored()
        differ = [name for name in self.FIXED if stored.get(name) != ours[name]]
        if differ:
            theirs, asked = (", ".join(f"{name} {side.get(name)}" for name in differ) for side in (stored, ours))
            raise ValueError(
                f"{path} was trained with {theirs}; asked for is {asked}; give another --name to start anew"
            )

    @classmethod
    def runs_directory(cls, volume: Volume) -> Path:
        """Returns where the lab's runs keep their weights."""
        return volume.path("checkpoints") / cls.LAB

    def run_directory(self, volume: Volume) -> Path:
        """Returns this run's folder, made if needed."""
        return make_own_directory(self.runs_directory(volume) / self.name)

    def tensorboard_directory(self, volume: Volume) -> Path:
        """Returns where this run's curves go: `./lab up tensorboard` shows all that lies under logs/tensorboard."""
        return make_own_directory(volume.path("logs") / "tensorboard" / self.LAB / self.name)
