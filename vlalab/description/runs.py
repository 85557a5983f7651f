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


def runs() -> list[str] | None:
    """Return the names of the runs, sorted; None if the volume cannot be read, which the doctor reports."""
    return _holding("runs", re.escape(STORE))


def recordings() -> list[str] | None:
    """Return the names of the recordings, like `runs`."""
    return _holding("demonstrations", re.escape(STORE))


def trained(lab: str) -> list[str] | None:
    """Return the names of a lab's models with weights, like `runs`."""
    return _holding(f"checkpoints/{lab}", rf"{PREFIXES[lab]}_.*\.pt")


def newest(kind: str = "runs") -> list[str]:
    """Return the names of the runs, or of the `demonstrations`, newest first."""

    def started(name: str) -> float:
        try:
            return (paths.volume() / kind / name / "config.json").stat().st_mtime  # written once, at the start of a run
        except OSError:
            return 0.0

    names = runs() if kind == "runs" else recordings()
    return sorted(names or [], key=started, reverse=True)


def _holding(directory: str, pattern: str) -> list[str] | None:
    """Return the subdirectories of a directory of the volume with a file that matches the pattern."""
    root = paths.volume() / directory
    try:
        names = sorted(name for name in os.listdir(root) if not name.startswith("."))
        return [name for name in names if any(re.fullmatch(pattern, file) for file in _files(root / name))]
    except FileNotFoundError:
        return []
    except OSError:
        return None


def _files(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def run(label: str, text: str) -> str:
    """Return the run for a name, a unique prefix, `latest` or a directory. Raise LabError if there is none."""
    directory = Path(text).expanduser()
    names = runs()
    if names is None or (text not in names and (directory / STORE).is_file()):
        return str(directory.absolute()) if "/" in text or directory.exists() else text
    return meant(label, text, names, "run")


def model(label: str, text: str, lab: str) -> str:
    """Return a lab's trained model for a name or a prefix, like `run`."""
    names = trained(lab)
    return text if names is None else meant(label, text, names, lab)


def thing(label: str, text: str) -> str:
    """Return the run, recording or trained model for a name or a prefix, like `run`."""
    names_by_kind = [runs(), recordings(), *(trained(lab) for lab in PREFIXES)]
    return (
        text if None in names_by_kind else meant(label, text, [name for some in names_by_kind for name in some], "run")
    )


def require(kind: str) -> None:
    """Raise LabError if there are no runs, or no trained models of a lab."""
    if (runs() if kind == "run" else trained(kind)) == []:
        raise LabError(_none(kind))


def require_epochs(lab: str, name: object, epochs: object) -> None:
    """Raise LabError if a lab has no trained model, or the model has no weights of one of the epochs.

    name: of the model, None for the newest. epochs: for example "0,10,29".
    """
    require(lab)
    directories = [paths.volume() / "checkpoints" / lab / model for model in trained(lab) or []]
    if not epochs or not directories:
        return
    newest = max(directories, key=lambda path: max(file.stat().st_mtime for file in path.glob("*.pt")))
    directory = next((directory for directory in directories if directory.name == name), newest)
    files = (re.fullmatch(rf"{PREFIXES[lab]}_(\d+)\.pt", file) for file in _files(directory))
    epochs_saved = sorted(int(match[1]) for match in files if match)
    if missing := [epoch for epoch in map(int, str(epochs).split(",")) if epoch not in epochs_saved]:
        has = ", ".join(map(str, epochs_saved)) or "none"
        raise LabError(f"--epoch {missing[0]} not found in '{directory.name}'; it has weights of epoch {has}")


def meant(label: str, text: str, names: Sequence[str], kind: str) -> str:
    """Return the name with that unique prefix; `latest` is returned unchanged. Raise LabError if there is none."""
    if not names:
        raise LabError(f"{label} '{text}' not found: {_none(kind)}")
    matches = [name for name in names if name.startswith(text)]
    if text in (*names, LATEST) or (text and len(matches) == 1):
        return text if text in (*names, LATEST) else matches[0]
    if text and matches:
        raise LabError(f"{label} '{text}' is ambiguous: {_some(matches)}")
    close = difflib.get_close_matches(text, names, 1, 0.4)
    hint = f"did you mean '{close[0]}'?" if close else f"known: {_some(names)}."
    raise LabError(f"{label} '{text}' not found; {hint} Run ./lab runs to list all")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")


def _none(kind: str) -> str:
    label = kind if kind in ("run", "recording") else f"trained {kind}"
    return f"no {label} in {paths.display_path(paths.volume())} yet; create one: {FIRST[kind]}"
