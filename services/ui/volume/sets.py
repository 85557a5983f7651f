"""The data sets of the volume: what is in one, its films and curves, and the episodes that a person marks as bad.

Its files are opened as a report's are: by descriptors, following no link below the volume's root. HDF5 files may name
others inside, so of those only names are read.
"""

from __future__ import annotations

import json
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.ui.site.problem import Missing
from services.ui.volume import files
from vla_common import anchored
from vla_contract.protocol.errors import did_you_mean
from vla_datasets.errors import DatasetError

if TYPE_CHECKING:
    from vla_datasets.lerobot import LeRobotDataset

DIRECTORY, META, ENDINGS = "datasets", ("meta/info.json", "meta/episodes.jsonl"), (".hdf5", ".h5")
MOST_BYTES = {".parquet": 2**28}  # of a file that is read whole
OTHER_BYTES = 2**26
OPEN = 16  # sets stay open


class Sets:
    """Reads data sets below a volume's root. Safe to share between threads."""

    def __init__(self, root: Path):
        self._root, self._lock = root, threading.Lock()
        self._open: OrderedDict[str, tuple[tuple, LeRobotDataset]] = OrderedDict()
        self._rows: dict[str, tuple[tuple, dict[str, Any]]] = {}

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per data set, by name; one that cannot be read has its name and why."""
        with self._lock:
            found = [self._row(name) for name in files.names(self._root, DIRECTORY)]
            return [row for row in found if row]

    def one(self, name: str) -> dict[str, Any]:
        """Return what is in a set: schema, tasks, episodes, and what its last check found. Raises Missing."""
        from vla_datasets import summary

        with self._lock:
            dataset = self._dataset(name)
            bad, why = self._bad(dataset)
            return {
                **self._row(name), "schema": summary.schema(dataset), "tasks_told": summary.tasks(dataset),
                "source": _source(dataset), "check": self._check(name), "marks_trouble": why,
                "episodes_told": [
                    {"episode": row.index, "task": "; ".join(row.tasks), "steps": row.length, "bad": row.index in bad}
                    for row in dataset.episodes
                ],
            }  # fmt: skip

    def episode(self, name: str, index: int) -> dict[str, Any]:
        """Return an episode's instruction, the cameras that have a film of it, and its curves as polylines."""
        from vla_datasets.pages import page

        with self._lock:
            dataset = self._dataset(name)
            one = _episode(dataset, index)
            dataset.columns(index)  # its trouble is told; page.charts would leave the curves out
            filmed = [key for key in dataset.video_keys if dataset.features[key]["dtype"] == "video"]
            return {
                "episode": index, "task": "; ".join(one.tasks), "steps": one.length, "fps": dataset.fps,
                "bad": index in self._bad(dataset)[0], "cameras": filmed,
                "in_rows": len(dataset.video_keys) - len(filmed), "width": page.WIDTH, "height": page.HEIGHT,
                "charts": [asdict(chart) for chart in page.charts(dataset, one)],
            }  # fmt: skip

    def open_video(self, name: str, index: int, camera: str) -> int:
        """Return a descriptor of an episode's film. Raises Missing."""
        with self._lock:
            dataset = self._dataset(name)
            if dataset.features.get(camera, {}).get("dtype") != "video":
                raise Missing(f"{name} has no films {camera!r}")
            path = dataset.video_path(_episode(dataset, index).index, camera)
        if path.suffix != ".mp4":
            raise Missing(f"{path.name} is no .mp4")
        return files.open_plain(self._root, *path.relative_to(self._root).parts)

    def mark(self, name: str, bad: list[int], good: list[int]) -> dict[str, Any]:
        """Marks episodes as bad, or takes it back; returns which are marked then."""
        from vla_datasets import marks

        with self._lock:
            return {"bad": marks.mark(self._dataset(name), bad, good).bad}

    def _row(self, name: str) -> dict[str, Any]:
        mark = self._mark(name)
        if name not in self._rows or self._rows[name][0] != mark:
            self._rows[name] = mark, self._made_row(name, mark)
        return self._rows[name][1]

    def _made_row(self, name: str, mark: tuple) -> dict[str, Any]:
        """Return a row; an empty one for what is no data set."""
        said = {"name": name, "bytes": _size(self._root, name)}
        if any(mark[: len(META)]):
            try:
                dataset = self._dataset(name)
                return {**said, **_facts(dataset), "bad": len(self._bad(dataset)[0])}
            except (DatasetError, Missing) as error:
                return {**said, "why": self._plain(error)}
        found = _hdf5(self._root, name)
        return {**said, **found} if found else {}

    def _dataset(self, name: str) -> LeRobotDataset:
        """Return an open set, as it is now. Raises Missing, and DatasetError for a damaged one."""
        from services.ui.volume.numbers_only import NumbersOnly

        mark = self._mark(name)
        if not any(mark[: len(META)]):
            known = [row["name"] for row in map(self._row, files.names(self._root, DIRECTORY)) if row]
            if name in known:
                raise DatasetError(f"{name} is LIBERO's HDF5; it is shown once it is written as a LeRobot set")
            raise Missing(f"data set {name!r} not found{did_you_mean(name, known)}")
        if name not in self._open or self._open[name][0] != mark[: len(META)]:
            self._open[name] = mark[: len(META)], NumbersOnly(self._root / DIRECTORY / name, self._opened)
            if len(self._open) > OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(name)
        return self._open[name][1]

    def _opened(self, path: str, flags: int) -> int:
        """Opens a file of a set, as open() has it done. Raises OSError."""
        try:
            descriptor = files.open_plain(self._root, *Path(path).relative_to(self._root).parts)
        except Missing as error:
            raise OSError(str(error)) from error
        if os.fstat(descriptor).st_size > (most := MOST_BYTES.get(Path(path).suffix, OTHER_BYTES)):
            os.close(descriptor)
            raise OSError(f"it has more than {most >> 20} MB, too much for a page")
        return descriptor

    def _bad(self, dataset: LeRobotDataset) -> tuple[tuple[int, ...], str | None]:
        """Return the episodes that are marked, and what is wrong with the marks, if anything is."""
        from vla_datasets import marks

        try:
            return marks.read(dataset).bad, None
        except DatasetError as error:
            return (), self._plain(error)

    def _check(self, name: str) -> Mapping[str, Any] | None:
        """Return what the last check of a set said, and whether the set has changed since; None without one."""
        try:
            with open(files.open_plain(self._root, "logs", DIRECTORY, f"{name}.check.json"), encoding="utf-8") as file:
                found = json.loads(file.read(2**20))
            lines = [str(line) for line in found["lines"]]
            at, grave = float(found["at"]), int(found["grave"])
        except (Missing, ValueError, KeyError, TypeError):
            return None
        changed = max(time_ns for _, time_ns in filter(None, self._mark(name)[: len(META)])) / 1e9
        return {"lines": lines, "at": at, "grave": grave, "is_old": changed > at}

    def _mark(self, name: str) -> tuple:
        """Return what changes when a set or its marks do: sizes and times; None for a file that is not there."""
        places = [(DIRECTORY, name, *each.split("/")) for each in META]
        marks = _status(self._root, DIRECTORY, f".{name}.marks.json")
        around = _status(self._root, DIRECTORY, name, directory=True)
        return (*(_status(self._root, *place) for place in places), marks, around)

    def _plain(self, error: Exception) -> str:
        return str(error).replace(f"{self._root}/", "")


def _facts(dataset: LeRobotDataset) -> dict[str, Any]:
    from vla_datasets import summary

    return {
        "layout": summary.layout(dataset), "robot": str(dataset.info.get("robot_type") or ""), "fps": dataset.fps,
        "episodes": len(dataset.episodes), "steps": len(dataset), "tasks": len(dataset.tasks),
        "cameras": [key.removeprefix("observation.images.") for key in dataset.video_keys],
    }  # fmt: skip


def _source(dataset: LeRobotDataset) -> dict[str, str]:
    """Return what a set of this lab says of where it is from."""
    names = ("recording", "run", "suite", "policy", "noise", "starts")
    return {name: str(dataset.source[name]) for name in names if name in (dataset.source or {})}


def _episode(dataset: LeRobotDataset, index: int):
    found = next((episode for episode in dataset.episodes if episode.index == index), None)
    if found is None:
        raise Missing(f"{dataset.name} has no episode {index}")
    return found


def _hdf5(root: Path, name: str) -> dict[str, Any] | None:
    """Return what the names inside LIBERO's files tell; None where there are none of those."""
    import h5py

    places = [(DIRECTORY, name)] if name.endswith(ENDINGS) else [
        (DIRECTORY, name, each) for each in files.names(root, DIRECTORY, name) if each.endswith(ENDINGS)
    ]  # fmt: skip
    found = {"layout": "LIBERO HDF5", "robot": "", "fps": None, "episodes": 0, "steps": None, "tasks": len(places)}
    try:
        for place in places:
            with open(files.open_plain(root, *place), "rb") as plain, h5py.File(plain, "r") as file:
                is_here = isinstance(file.get("data", getlink=True), h5py.HardLink)
                found["episodes"] += sum(each.startswith("demo_") for each in file["data"]) if is_here else 0
    except (OSError, Missing, RuntimeError, KeyError) as error:
        found["why"] = f"{'/'.join(place[1:])} cannot be read: {error}"
    return {**found, "cameras": [], "bad": 0} if places else None


def _size(root: Path, name: str) -> int:
    """Return the bytes that a set takes, links aside."""
    try:
        with anchored.directory(root, DIRECTORY, name) as entered:
            inside = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=entered)
    except OSError:
        return (_status(root, DIRECTORY, name) or (0,))[0]
    try:
        around = os.fwalk(dir_fd=inside)
        return sum(
            os.stat(each, dir_fd=at, follow_symlinks=False).st_size for _, _, there, at in around for each in there
        )
    finally:
        os.close(inside)


def _status(root: Path, *names: str, directory: bool = False) -> tuple[int, int] | None:
    try:
        with anchored.directory(root, *names[:-1]) as around:
            found = os.stat(names[-1], dir_fd=around, follow_symlinks=False)
    except OSError:
        return None
    is_it = stat.S_ISDIR if directory else stat.S_ISREG
    return (found.st_size, found.st_mtime_ns) if is_it(found.st_mode) else None
