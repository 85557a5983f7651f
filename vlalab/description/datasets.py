"""Data sets on the volume and the sources of new ones, by name."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from vlalab.description import manifests, runs
from vlalab.host import paths, shared_code
from vlalab.host.console import LabError

SUFFIXES = (".hdf5", ".h5")
CONFIG_BYTES = 2**24  # of a run's or a recording's config.json
FIRST = "./lab record libero_goal --name goal; ./lab dataset goal --format lerobot"

regular_files = shared_code.module("vla_common.regular_files")


def available() -> list[str]:
    """Return the names of the data sets on the volume, sorted."""
    return sorted(path.name for path in (paths.volume() / "datasets").glob("[!.]*") if is_dataset(path))


def is_dataset(path: Path) -> bool:
    """Return whether a path is a data set: a directory with meta/ or HDF5 files, or an HDF5 file."""
    if path.is_file():
        return path.suffix in SUFFIXES
    return (path / "meta").is_dir() or any(file.suffix in SUFFIXES for file in path.glob("*"))


def dataset(label: str, text: str) -> str:
    """Return a data set's name or absolute path. Raise LabError if it is not one."""
    names, path = available(), Path(text).expanduser()
    if text in names:
        return text
    if not path.exists():
        raise _missing(label, text, names, "data set")
    if not is_dataset(path):
        raise LabError(f"{label} '{text}' is not a data set; expected a directory with meta/info.json or *.hdf5 files")
    return str(path.absolute())


def source(label: str, text: str) -> str:
    """Return the name or directory of a recording, a run or a data set."""
    if text == runs.LATEST:
        return runs.run(label, text)
    names, path = [*runs.recordings(), *runs.runs(), *available()], Path(text).expanduser()
    if text in names:
        return text
    if (path / runs.STORE).is_file():
        return str(path.absolute())
    if path.exists():
        return dataset(label, text)
    matches = [name for name in names if name.startswith(text)]
    if len(matches) == 1:
        return matches[0]
    raise _missing(label, text, names, "recording, run or data set")


def job_of(text: str) -> str | None:
    """Return the benchmark's job of a recording or a run, None for anything else."""
    name = (runs.newest() or [text])[0] if text == runs.LATEST else text
    for directory in (*(paths.volume() / kind / name for kind in ("demonstrations", "runs")), Path(text).expanduser()):
        config, max_bytes = directory / "config.json", CONFIG_BYTES
        with suppress(OSError, ValueError, KeyError), regular_files.open_regular(config, max_bytes) as file:
            return manifests.suites()[json.loads(file.read().decode("utf-8"))["suite"]]
    return None


def _missing(label: str, text: str, names: list[str], kind: str) -> LabError:
    if names:
        return LabError(runs.not_found(label, text, names))
    none_yet = f"there is no {kind} in {paths.display_path(paths.volume())} yet; create one: {FIRST}"
    return LabError(f"{label} '{text}' not found; {none_yet}")
