"""The volume's data sets: contents, videos and curves, and marks for bad episodes.

Files are opened by descriptor, without following links below the volume's root. HDF5 files may link to other files, so
only names are read from them.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.ui.site.requests import NotFound
from services.ui.volume import files
from vla_common import anchored
from vla_contract.protocol.errors import did_you_mean
from vla_datasets.errors import DatasetError

if TYPE_CHECKING:
    from vla_datasets.lerobot import LeRobotDataset
    from vla_datasets.metadata import Episode

DIRECTORY, HDF5_SUFFIXES = "datasets", (".hdf5", ".h5")
META = ("info.json", "episodes.jsonl", "tasks.parquet")  # in meta/; the last one in v3.0
MAX_BYTES_BY_SUFFIX = {".parquet": 2**28}  # of a file that is read at once
OTHER_BYTES = 2**26
STATISTICS = ("min", "mean", "max", "std")
TAR_BYTES = 2**16  # of a download, per read
OPEN = 16  # data sets kept open


class Datasets:
    """Reader of the data sets below a volume's root. Thread-safe."""

    def __init__(self, root: Path):
        self._root, self._lock = root, threading.Lock()
        self._open: dict[str, tuple[list, LeRobotDataset]] = {}
        self._rows: dict[str, tuple[list, dict[str, Any]]] = {}

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per data set, sorted by name; an unreadable one has only its name and the reason."""
        with self._lock:
            return [row for name in files.names(self._root, DIRECTORY) if (row := self._row(name))]

    def describe(self, name: str) -> dict[str, Any]:
        """Return a data set's schema, tasks, episodes and last check. Raises NotFound."""
        from vla_datasets import summary

        with self._lock:
            dataset = self._dataset(name)
            bad, why = self._bad(dataset)
            thumbnail = self._thumbnail(dataset)
            origin, sources = dataset.source or {}, ("recording", "run", "suite", "policy", "noise", "starts")
            return {
                **self._row(name), "schema": summary.schema(dataset), "tasks_told": summary.tasks(dataset),
                "statistics": self._statistics(dataset), "thumbnail": thumbnail,
                "source": {key: str(origin[key]) for key in sources if key in origin},
                "check": self._check(name), "marks_trouble": why,
                "episodes_told": [
                    {"episode": row.index, "task": "; ".join(row.tasks), "steps": row.length, "bad": row.index in bad,
                     "start": dataset.clip(row.index, thumbnail).start_s if thumbnail and dataset.is_v3 else 0.0}
                    for row in dataset.episodes
                ],
            }  # fmt: skip

    def episode(self, name: str, index: int) -> dict[str, Any]:
        """Return an episode's instruction, the cameras with a video, and its curves as polylines.

        spans: in v3.0, where a video has other episodes too, the seconds that a player starts and stops at.
        """
        from vla_datasets.pages import page

        def span(key: str) -> tuple[float, float]:
            clip = dataset.clip(index, key)
            # It stops in the middle of the last frame: at its end some players show the next one.
            return clip.start_s, clip.start_s + (clip.length - 0.5) / dataset.fps

        with self._lock:
            dataset = self._dataset(name)
            episode = _find_episode(dataset, index)
            dataset.columns(index)  # raises for damaged rows, which page.charts would skip
            videos = [key for key in dataset.video_keys if dataset.features[key]["dtype"] == "video"]
            return {
                "episode": index, "task": "; ".join(episode.tasks), "steps": episode.length, "fps": dataset.fps,
                "bad": index in self._bad(dataset)[0], "cameras": videos,
                "spans": {key: span(key) for key in videos if dataset.is_v3},
                "in_rows": len(dataset.video_keys) - len(videos), "width": page.WIDTH, "height": page.HEIGHT,
                "charts": page.charts(dataset, episode),
            }  # fmt: skip

    def open_video(self, name: str, index: int, camera: str) -> int:
        """Return a descriptor of the file with an episode's video. Raises NotFound."""
        with self._lock:
            dataset = self._dataset(name)
            if dataset.features.get(camera, {}).get("dtype") != "video":
                raise NotFound(f"{name} has no videos of {camera!r}")
            path = dataset.images_path(_find_episode(dataset, index).index, camera)
        if path.suffix != ".mp4":
            raise NotFound(f"{path.name} is not an .mp4")
        return files.open_plain(self._root, *path.relative_to(self._root).parts)

    def mark(self, name: str, bad: list[int], good: list[int]) -> dict[str, Any]:
        """Mark or unmark episodes as bad. Return the marked ones."""
        from vla_datasets import marks

        with self._lock:
            return {"bad": marks.mark(self._dataset(name), bad, good).bad}

    def archive(self, name: str) -> Iterator[bytes]:
        """Yield a data set's directory as a tar file, links as links. Raises NotFound."""
        with self._lock:
            self._dataset(name)
        with anchored.directory(self._root, DIRECTORY) as around:
            command = ["tar", "--create", "--file=-", "--", name]
            process = subprocess.Popen(command, cwd=f"/proc/self/fd/{around}", stdout=subprocess.PIPE)
        output = process.stdout
        assert output is not None

        def chunks() -> Iterator[bytes]:
            with process:
                try:
                    yield from iter(lambda: output.read(TAR_BYTES), b"")
                finally:
                    process.kill()

        return chunks()

    def _row(self, name: str) -> dict[str, Any]:
        """Return a row, cached until the data set changes; empty if it is not a data set."""
        mark = self._fingerprint(name)
        previous, row = self._rows.get(name, (None, {}))
        if previous != mark:
            row = {"name": name, "bytes": files.tree_size(self._root, DIRECTORY, name)}
            if any(mark[: len(META)]):
                row |= self._summary(name)
            else:
                contents = self._hdf5(name)
                row = {**row, **contents} if contents else {}
            self._rows[name] = mark, row
        return row

    def _summary(self, name: str) -> dict[str, Any]:
        from vla_datasets import summary

        try:
            dataset = self._dataset(name)
            camera = self._thumbnail(dataset)
            return {
                "layout": summary.layout(dataset), "robot": str(dataset.info.get("robot_type") or ""),
                "fps": dataset.fps, "episodes": len(dataset.episodes), "steps": len(dataset),
                "tasks": len(dataset.tasks), "bad": len(self._bad(dataset)[0]),
                "thumbnail": f"{dataset.episodes[0].index}/{camera}" if camera and dataset.episodes else None,
                "cameras": [key.removeprefix("observation.images.") for key in dataset.video_keys],
            }  # fmt: skip
        except (DatasetError, NotFound) as error:
            return {"why": self._relative_message(error)}

    def _hdf5(self, name: str) -> dict[str, Any] | None:
        """Return a row from the names inside LIBERO's HDF5 files; None if there are none."""
        import h5py

        paths = [(DIRECTORY, name, each) for each in files.names(self._root, DIRECTORY, name)]
        paths = [path for path in ((DIRECTORY, name), *paths) if path[-1].endswith(HDF5_SUFFIXES)]
        row = {"layout": "LIBERO HDF5", "robot": "", "fps": None, "episodes": 0, "steps": None, "tasks": len(paths)}
        try:
            for path in paths:
                with open(files.open_plain(self._root, *path), "rb") as plain, h5py.File(plain, "r") as file:
                    has_data = isinstance(file.get("data", getlink=True), h5py.HardLink)
                    row["episodes"] += sum(each.startswith("demo_") for each in file["data"]) if has_data else 0
        except (OSError, NotFound, RuntimeError, KeyError) as error:
            row["why"] = f"{'/'.join(path[1:])} cannot be read: {error}"
        return {**row, "cameras": [], "bad": 0} if paths else None

    def _dataset(self, name: str) -> LeRobotDataset:
        """Return the data set, reopened if it has changed. Raises NotFound, and DatasetError for a damaged one."""
        from vla_datasets.numeric import NumericDataset

        mark = self._fingerprint(name)[: len(META)]
        if not any(mark):
            names = [row["name"] for row in map(self._row, files.names(self._root, DIRECTORY)) if row]
            if name in names:
                raise DatasetError(f"{name} is LIBERO's HDF5; convert it to a LeRobot data set to show it")
            raise NotFound(f"data set {name!r} not found{did_you_mean(name, names)}")
        if name not in self._open or self._open[name][0] != mark:
            if len(self._open) >= OPEN:
                self._open.clear()
            self._open[name] = mark, NumericDataset(self._root / DIRECTORY / name, self._opened)
        return self._open[name][1]

    def _opened(self, path: str, flags: int) -> int:
        """Open a file of a data set; an opener for open(). Raises OSError."""
        try:
            descriptor = files.open_plain(self._root, *Path(path).relative_to(self._root).parts)
        except NotFound as error:
            raise OSError(str(error)) from error
        if os.fstat(descriptor).st_size > (limit := MAX_BYTES_BY_SUFFIX.get(Path(path).suffix, OTHER_BYTES)):
            os.close(descriptor)
            raise OSError(f"the file has more than {limit >> 20} MB, too much for a page")
        return descriptor

    def _thumbnail(self, dataset: LeRobotDataset) -> str | None:
        """Return the first camera with videos, whose first frames stand for the episodes; None if there is none."""
        return next((key for key in dataset.video_keys if dataset.features[key]["dtype"] == "video"), None)

    def _statistics(self, dataset: LeRobotDataset) -> list[tuple[Any, ...]]:
        """Return the statistics of states and actions that the data set states: column, name, numbers."""
        from vla_datasets import summary

        try:
            stated = summary.named(dataset, dataset.stated_statistics() or {})
            return [(key, name, *(values[kind] for kind in STATISTICS)) for key, name, values in stated]
        except (DatasetError, KeyError, IndexError, TypeError, ValueError):  # the check reports it
            return []

    def _bad(self, dataset: LeRobotDataset) -> tuple[tuple[int, ...], str | None]:
        """Return the marked episodes, and the error if the marks cannot be read."""
        from vla_datasets import marks

        try:
            return marks.read(dataset).bad, None
        except DatasetError as error:
            return (), self._relative_message(error)

    def _check(self, name: str) -> Mapping[str, Any] | None:
        """Return the last check's result, and whether the data set has changed since; None if never checked."""
        try:
            with open(files.open_plain(self._root, "logs", DIRECTORY, f"{name}.check.json"), encoding="utf-8") as file:
                result = json.loads(file.read(2**20))
            lines = [str(line) for line in result["lines"]]
            at, grave = float(result["at"]), int(result["grave"])
        except (NotFound, ValueError, KeyError, TypeError):
            return None
        changed = max(time_ns for _, time_ns in filter(None, self._fingerprint(name)[: len(META)])) / 1e9
        return {"lines": lines, "at": at, "grave": grave, "is_old": changed > at}

    def _fingerprint(self, name: str) -> list[tuple[int, int] | None]:
        """Return sizes and times of the files in META, the marks' file, and the directory; None for a missing one."""
        meta = files.fingerprints(self._root, (DIRECTORY, name, "meta"), META)
        return [*meta, *files.fingerprints(self._root, (DIRECTORY,), (f".{name}.marks.json", name))]

    def _relative_message(self, error: Exception) -> str:
        return str(error).replace(f"{self._root}/", "")


def _find_episode(dataset: LeRobotDataset, index: int) -> Episode:
    for episode in dataset.episodes:
        if episode.index == index:
            return episode
    raise NotFound(f"{dataset.name} has no episode {index}")
