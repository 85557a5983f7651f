"""Runs, recordings and trained models on the volume, by name."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from vlalab.host import paths, shared_code
from vlalab.host.console import LabError

STORE: str = shared_code.load("vla_evaluation.runs:STORE")  # the file in every run's directory
PREFIXES: dict[str, str] = shared_code.load("vla_evaluation.runs:PREFIXES")  # lab → prefix of its weights files
LATEST = "latest"
FIRST = {
    "run": "./lab eval libero_goal --trials 2",
    "recording": "./lab record libero_goal",
    **{lab: f"./lab train {lab}" for lab in PREFIXES},
}


def runs() -> list[str]:
    """Return the names of the runs, sorted."""
    return _with_file("runs", re.escape(STORE))


def recordings() -> list[str]:
    """Return the names of the recordings, sorted."""
    return _with_file("demonstrations", re.escape(STORE))


def trained(lab: str) -> list[str]:
    """Return the names of a lab's models with weights, sorted."""
    return _with_file(f"checkpoints/{lab}", rf"{PREFIXES[lab]}_.*\.pt")


def newest(kind: str = "runs") -> list[str]:
    """Return the names of the runs, or of the `demonstrations`, newest first."""

    def started(name: str) -> float:
        config = paths.volume() / kind / name / "config.json"  # written once, at the start of a run
        return config.stat().st_mtime if config.exists() else 0.0

    return sorted(runs() if kind == "runs" else recordings(), key=started, reverse=True)


def _with_file(directory: str, pattern: str) -> list[str]:
    """Return the subdirectories of a directory of the volume with a file that matches the pattern."""
    root = paths.volume() / directory
    names = sorted(path.name for path in root.glob("[!.]*") if path.is_dir()) if root.is_dir() else []
    return [name for name in names if any(re.fullmatch(pattern, file) for file in os.listdir(root / name))]


def run(label: str, text: str) -> str:
    """Return the run for a name, a unique prefix, `latest` or a directory. Raise LabError if there is none."""
    directory, names = Path(text).expanduser(), runs()
    if text not in names and (directory / STORE).is_file():
        return str(directory.absolute())
    return meant(label, text, names, "run")


def model(label: str, text: str, lab: str) -> str:
    """Return a lab's trained model for a name or a prefix, like `run`."""
    return meant(label, text, trained(lab), lab)


def thing(label: str, text: str) -> str:
    """Return the run, recording or trained model for a name or a prefix, like `run`."""
    names = [*runs(), *recordings(), *(name for lab in PREFIXES for name in trained(lab))]
    return meant(label, text, names, "run")


def require(kind: str) -> None:
    """Raise LabError if there are no runs, or no trained models of a lab."""
    if not (runs() if kind == "run" else trained(kind)):
        raise LabError(_none(kind))


def meant(label: str, text: str, names: Sequence[str], kind: str) -> str:
    """Return the name with that unique prefix; `latest` is returned unchanged. Raise LabError if there is none."""
    if not names:
        raise LabError(f"{label} '{text}' not found: {_none(kind)}")
    if text in (*names, LATEST):
        return text
    matches = [name for name in names if text and name.startswith(text)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise LabError(f"{label} '{text}' is ambiguous: {_some(matches)}")
    raise LabError(f"{not_found(label, text, names)} Run ./lab runs to list all")


def not_found(label: str, text: str, names: Sequence[str]) -> str:
    """Return the message for an unknown name, with the closest or the first known ones."""
    close = difflib.get_close_matches(text, names, 1, 0.4)
    hint = f"did you mean '{close[0]}'?" if close else f"known: {_some(names)}."
    return f"{label} '{text}' not found; {hint}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")


def _none(kind: str) -> str:
    label = kind if kind in ("run", "recording") else f"trained {kind}"
    return f"no {label} in {paths.display_path(paths.volume())} yet; create one: {FIRST[kind]}"
