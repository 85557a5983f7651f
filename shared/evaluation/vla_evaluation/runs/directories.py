"""Run directories: create one, find the one to resume, reject one whose configuration has changed."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_common.anchored import require_no_links
from vla_contract.protocol.errors import did_you_mean
from vla_evaluation.config import LATEST, config_hash, differences
from vla_evaluation.runs import STORE as STORE
from vla_evaluation.store.records import StoreError, as_damage
from vla_evaluation.store.runstore import RunStore, read_run

DIRECTORIES = ("episodes", "videos", "logs", "work")
PLANNED = ("suite", "tasks", "episodes")  # the store's rows were made from these: they allow no drift
# Left by a killed process; nothing reads these names. .run.sqlite.* is a store that was never named, and its journal.
PARTIAL_FILES = ("videos/.*.partial", "episodes/.*.npz.*", ".run.sqlite.*", "work/.*.partial", "work/*/.*.partial")


class RunUnusable(Exception):
    """The requested run cannot be used; the message has the reason and the next step."""


@dataclass(frozen=True)
class Run:
    """An open run, and whether and with which changes it was resumed."""

    directory: Path
    store: RunStore
    resumed: bool
    drift: list[str]

    @property
    def id(self) -> str:
        return self.directory.name


def find_runs(root: Path) -> list[Path]:
    """Return the run directories under `root`, oldest first."""

    def created(directory: Path) -> float:
        try:
            with read_run(directory, check=False) as store:
                return float(store.meta("created", 0.0))
        except StoreError:
            return (directory / STORE).stat().st_mtime

    directories = [path.parent for path in root.glob(f"[!.]*/{STORE}")]  # a dot: being deleted
    return sorted(directories, key=lambda directory: (created(directory), directory.name))


def find_run(root: Path, name: str) -> Path:
    """Return the directory of a run: by name, by the unique beginning of a name, by path, or as "latest".

    RunUnusable, with similar names, for any other text.
    """
    if name == LATEST and (runs := find_runs(root)):
        return runs[-1]
    for directory in (root / name, Path(name)):
        if (directory / STORE).is_file():
            return directory.resolve()
    try:
        return root.resolve() / by_beginning(name, [directory.name for directory in find_runs(root)])
    except ValueError as error:
        raise RunUnusable(f"run {name!r} {error} (in {root})") from error


def by_beginning(name: str, names: Sequence[str]) -> str:
    """Return the name itself if it exists, else the only one that begins with it. ValueError for none or several."""
    matches = [name] if name in names else [candidate for candidate in names if candidate.startswith(name)]
    if not matches:
        raise ValueError(f"not found{did_you_mean(name, names)}")
    if len(matches) > 1:
        more = f" and {len(matches) - 5} more" if matches[5:] else ""
        raise ValueError(f"matches {', '.join(matches[:5])}{more}; type more of the name")
    return matches[0]


@contextmanager
def open_run(
    root: Path,
    identity: dict[str, Any],
    plan: list[tuple[int, int]],
    *,
    run_id: str | None,
    resume: str | None,
    label: str,
    allow_drift: bool = False,
) -> Iterator[Run]:
    """Yield the run to work on, locked for this process: the named one (resumed or created), the latest that matches,
    or a new one.

    RunUnusable if another process has locked it, if a named run has another configuration (with the difference), or if
    there is none to resume. The lock is taken first: of two processes with the same new name one creates the run.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunUnusable(explain_os_error(error, root)) from error
    if resume is not None:
        directory = _latest_match(root, identity) if resume == LATEST else find_run(root, resume)
    elif run_id:
        directory = root / run_id
        directory.mkdir(exist_ok=True)
    else:  # LABEL-NUMBER, with the next free number
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.")
        pattern = re.compile(rf"{re.escape(stem)}-(\d+)")
        taken = (int(match[1]) for path in root.iterdir() if (match := pattern.fullmatch(path.name)))
        for number in itertools.count(max(taken, default=0) + 1):
            directory = root / f"{stem}-{number}"
            with suppress(FileExistsError):
                directory.mkdir()
                break
    require_no_links(directory)
    with lock(directory):
        for path in [path for pattern in PARTIAL_FILES for path in directory.glob(pattern)]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        if (directory / STORE).exists():
            run = _resume(directory, identity, allow_drift)
        else:
            meta = {"run_id": directory.name, "identity": identity, "created": time.time()}
            facts = {"suite": identity["suite"], "config_hash": config_hash(identity), "plan": plan, "meta": meta}
            try:
                for name in DIRECTORIES:
                    (directory / name).mkdir(exist_ok=True)
                run = Run(directory, RunStore.create(directory / STORE, **facts), resumed=False, drift=[])
                (directory / "config.json").write_text(json.dumps(identity, indent=2, ensure_ascii=False) + "\n")
            except OSError as error:
                raise RunUnusable(explain_os_error(error, directory)) from error
        with run.store:
            yield run


def explain_os_error(error: OSError, path: Path) -> str:
    """Return the message of a file system error with the next step; an error's own message stays unchanged."""
    if error.filename is None and error.errno and error.strerror != os.strerror(error.errno):
        return str(error.strerror)
    at = error.filename or path
    if error.errno == errno.ENOSPC:
        return f"no space left at {at}; free some space, then resume. Finished episodes are stored"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"{at} is not writable ({error.strerror}); make it writable or choose another volume (VLALAB_VOLUME)"
    return f"{at}: {error.strerror or error}; repair it or choose another volume (VLALAB_VOLUME)"


def _resume(directory: Path, identity: dict[str, Any], allow_drift: bool) -> Run:
    store = RunStore(directory / STORE)
    with as_damage(directory / STORE):
        recorded = store.meta("identity")
        drift = differences(recorded, identity)
        other_plan = any(recorded[name] != identity[name] for name in PLANNED)
    if drift and (other_plan or not allow_drift):
        store.close()
        mix = "" if other_plan else ", or add --allow-drift to mix the two"
        raise RunUnusable(
            f"run {directory.name!r} has another configuration; the difference:\n"
            + "\n".join(f"  {line}" for line in drift)
            + f"\nUse the old configuration, or start a new run under another name{mix}."
        )
    for name in DIRECTORIES:
        (directory / name).mkdir(exist_ok=True)
    return Run(directory, store, resumed=True, drift=drift)


def _latest_match(root: Path, identity: dict[str, Any]) -> Path:
    expected, nearest = config_hash(identity), None
    for directory in reversed(find_runs(root)):
        try:
            with read_run(directory) as store:
                if store.config_hash == expected:
                    return directory
                nearest = nearest or (directory, differences(store.meta("identity"), identity))
        except StoreError:
            continue  # a damaged run is no candidate; `runs list` shows it
    if nearest is None:
        raise RunUnusable(f"no run to resume in {root}; remove --resume to start a new one")
    lines = "\n".join(f"  {line}" for line in nearest[1])
    raise RunUnusable(
        f"no run in {root} has this configuration; the latest, {nearest[0].name!r}, differs in:\n{lines}\n"
        "Remove --resume to start a new run."
    )


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Lock the run for this process; RunUnusable if another evaluator has it. The lock ends with the process."""
    with open(directory / "run.lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = ""
            for _ in range(20):  # it is written a moment after the lock is taken
                if owner:
                    break
                time.sleep(0.05)
                file.seek(0)
                owner = file.read().strip()
            raise RunUnusable(
                f"{owner or 'another process'} is already running {directory.name!r}; wait, stop it, or choose another "
                "name"
            ) from None
        except OSError as error:
            # On a file system without locks, leases still make every episode count once.
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
        file.truncate(0)
        file.write(f"process {os.getpid()} (started {time.strftime('%Y-%m-%d %H:%M:%S')})")
        file.flush()
        yield
