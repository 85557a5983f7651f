"""Run folders: making one, finding the one to resume, refusing one whose configuration has changed."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from vla_common.anchored import refuse_links
from vla_contract.protocol.errors import did_you_mean
from vla_evaluation.config import LATEST, config_hash, differences
from vla_evaluation.runs import STORE as STORE
from vla_evaluation.runs.leftovers import sweep
from vla_evaluation.store.records import StoreError, as_damage
from vla_evaluation.store.runstore import RunStore

FOLDERS = ("episodes", "videos", "logs", "work")
PLANNED = ("suite", "tasks", "episodes")  # what the store's rows were made from: no drift of these makes sense


class RunRefused(Exception):
    """The run that was asked for cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Run:
    """An open run and how it was come by."""

    folder: Path
    store: RunStore
    resumed: bool
    drift: list[str]

    @property
    def id(self) -> str:
        return self.folder.name


def find_runs(root: Path) -> list[Path]:
    """Returns the run folders under `root`, oldest first."""
    found = [path.parent for path in root.glob(f"*/{STORE}") if not path.parent.name.startswith(".")]  # being removed
    return sorted(found, key=lambda folder: (_created(folder), folder.name))


def _created(folder: Path) -> float:
    try:
        with as_damage(folder / STORE), RunStore(folder / STORE, readonly=True, check=False) as store:
            return float(store.meta("created", 0.0))
    except StoreError:
        return (folder / STORE).stat().st_mtime


def find_run(root: Path, name: str) -> Path:
    """Returns the folder of a run: by name, by the beginning of one name only, by path, or as "latest".

    RunRefused, with those that it could mean, for any other text.
    """
    if name == LATEST and (runs := find_runs(root)):
        return runs[-1]
    for folder in (root / name, Path(name)):
        if (folder / STORE).is_file():
            return folder.resolve()
    try:
        return root.resolve() / by_beginning(name, [folder.name for folder in find_runs(root)])
    except ValueError as error:
        raise RunRefused(f"run {name!r} {error} (in {root})") from error


def by_beginning(name: str, known: Sequence[str]) -> str:
    """Returns the one of these names that is meant: it itself, or the only one that begins so. ValueError for none."""
    meant = [one for one in known if one.startswith(name)]
    if name in known or len(meant) == 1:
        return name if name in known else meant[0]
    if meant:
        more = f" and {len(meant) - 5} more" if meant[5:] else ""
        raise ValueError(f"could be {', '.join(meant[:5])}{more}; type some more of it")
    raise ValueError(f"not found{did_you_mean(name, known)}")


@contextmanager
def open_run(
    root: Path,
    identity: dict,
    plan: list[tuple[int, int]],
    *,
    run_id: str | None,
    resume: str | None,
    label: str,
    allow_drift: bool = False,
) -> Iterator[Run]:
    """Yields the run to work on, held by this process alone: the one named (resumed or made), the latest that
    matches, or a new one.

    RunRefused where another process has it, a named run has another configuration (with the difference), or none is
    there to resume. The lock is taken first: of two that name the same new run one makes it.
    """
    _make_root(root)
    if resume is not None:
        folder = _latest_match(root, identity) if resume == LATEST else find_run(root, resume)
    else:
        folder = _make_folder(root, run_id) if run_id else _make_new_folder(root, label)
    refuse_links(folder)
    with lock(folder):
        sweep(folder)
        is_made = (folder / STORE).exists()
        run = _resume(folder, identity, allow_drift) if is_made else _create(folder, identity, plan)
        with run.store:
            yield run


def _make_root(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunRefused(explain_os_error(error, root)) from error


def explain_os_error(error: OSError, place: Path) -> str:
    """Returns what an error of the file system means here; an error that explains itself is left as it is."""
    if error.filename is None and error.errno and error.strerror != os.strerror(error.errno):
        return error.strerror
    if error.errno == errno.ENOSPC:
        return f"no space left at {error.filename or place}: free some and resume; finished episodes are safe"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        what = f"{error.filename or place} cannot be written ({error.strerror})"
        return f"{what}: make it writable or choose another volume (VLALAB_VOLUME)"
    return f"{error.filename or place}: {error.strerror or error}; choose another volume (VLALAB_VOLUME) or repair it"


def _make_folder(root: Path, run_id: str) -> Path:
    (root / run_id).mkdir(exist_ok=True)
    return root / run_id


def _make_new_folder(root: Path, label: str) -> Path:
    """Makes a folder that nobody else has, named after label and number: short enough to be typed."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.")
    pattern = re.compile(rf"{re.escape(stem)}-(\d+)")
    taken = (int(found[1]) for path in root.iterdir() if (found := pattern.fullmatch(path.name)))
    for number in itertools.count(max(taken, default=0) + 1):
        folder = root / f"{stem}-{number}"
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("there is always a next number")


def _create(folder: Path, identity: dict, plan: list[tuple[int, int]]) -> Run:
    try:
        for name in FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)
        meta = {"run_id": folder.name, "identity": identity, "created": time.time()}
        store = RunStore.create(
            folder / STORE, suite=identity["suite"], config_hash=config_hash(identity), plan=plan, meta=meta
        )
        (folder / "config.json").write_text(json.dumps(identity, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise RunRefused(explain_os_error(error, folder)) from error
    return Run(folder, store, resumed=False, drift=[])


def _resume(folder: Path, identity: dict, allow_drift: bool) -> Run:
    store = RunStore(folder / STORE)
    with as_damage(folder / STORE):
        recorded = store.meta("identity")
        drift = differences(recorded, identity)
        other_plan = any(recorded[name] != identity[name] for name in PLANNED)
    if drift and (other_plan or not allow_drift):
        store.close()
        mix = "" if other_plan else ", or add --allow-drift to mix the two"
        raise RunRefused(
            f"run {folder.name!r} was made with another configuration; the difference:\n"
            + "\n".join(f"  {line}" for line in drift)
            + f"\nGive it the old configuration or start anew under another name{mix}."
        )
    for name in FOLDERS:
        (folder / name).mkdir(exist_ok=True)
    return Run(folder, store, resumed=True, drift=drift)


def _latest_match(root: Path, identity: dict) -> Path:
    wanted, nearest = config_hash(identity), None
    for folder in reversed(find_runs(root)):
        try:
            with as_damage(folder / STORE), RunStore(folder / STORE, readonly=True) as store:
                if store.config_hash == wanted:
                    return folder
                nearest = nearest or (folder, differences(store.meta("identity"), identity))
        except StoreError:
            continue  # a damaged run is no candidate; `runs list` shows it
    if nearest is None:
        raise RunRefused(f"there is no run to resume in {root}; leave --resume out to start one")
    lines = "\n".join(f"  {line}" for line in nearest[1])
    raise RunRefused(
        f"no run in {root} has this configuration; the latest, {nearest[0].name!r}, differs in:\n{lines}\n"
        "Leave --resume out to start a new run."
    )


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Holds the run for this process alone; RunRefused if another evaluator has it. Ends with the process, however."""
    with open(folder / "run.lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunRefused(
                f"{_holder(file)} is working on run {folder.name!r}; wait for it, stop it, or choose another name"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            # a file system without locks: leases still make every episode count once
        file.truncate(0)
        file.write(f"process {os.getpid()} (started {time.strftime('%Y-%m-%d %H:%M:%S')})")
        file.flush()
        yield


def _holder(file: TextIO) -> str:
    """Returns who has a run's lock, in words; it has said so a moment after it got the lock."""
    for _ in range(20):
        time.sleep(0.05)
        file.seek(0)
        if text := file.read().strip():
            return text
    return "another process"
