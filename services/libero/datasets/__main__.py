"""`python -m services.libero.datasets SOURCE --format lerobot`: make and inspect data sets."""

from __future__ import annotations

from pathlib import Path

import tyro

from services.libero.datasets import convert
from services.libero.datasets.config import DatasetConfig
from vla_common import entrypoint
from vla_common.volume import Volume, VolumeError, display_path
from vla_datasets import conversion, hdf5, marks, program, summary
from vla_datasets.errors import DatasetError
from vla_datasets.loader import find, open_dataset
from vla_evaluation.evaluate import choose_workers
from vla_evaluation.recording import sources
from vla_evaluation.runs.directories import STORE
from vla_evaluation.store.records import StoreError
from vla_evaluation.terminal import say

WORKER_GB = 1.6


def main() -> int:
    """Run the command given by the flags; return the exit code."""
    config = tyro.cli(DatasetConfig, prog="dataset", config=(tyro.conf.PositionalRequiredArgs,))
    if not config.makes:
        directory = find(config.source)
        if any(config.marks):
            print(marks.mark(open_dataset(directory), *config.marks))
            if not (config.check or config.show or config.write_stats):
                return 0
        return program.read(directory, config.check, config.show, config.write_stats)
    made = make(config)
    return program.read(made, config.check, config.show) if config.check or config.show else 0


def make(config: DatasetConfig) -> Path:
    """Make a data set; return its directory."""
    volume, layout = Volume(), config.format or "lerobot"
    name = config.source
    stores = (volume.path("demonstrations") / name / STORE, volume.path("runs") / name / STORE)
    existing = None  # the data set that is the source, unless that is a recording or a run
    if not any(path.is_file() for path in stores):
        candidates = (volume.path("datasets") / name, Path(name).expanduser())
        existing = next((path for path in candidates if (path / "meta").is_dir() or hdf5.files(path)), None)
    recorded = sources.find(name, volume, config.render) if existing is None else None
    if existing is not None:
        base = (existing.stem if existing.is_file() else existing.name).removesuffix("-v3.0")
    if recorded is not None:
        base = recorded.name
    directory = volume.datasets / (config.name or base + conversion.SUFFIXES.get(layout, ""))
    if directory.exists():
        raise DatasetError(f"{display_path(directory)} already exists; choose another --name, or remove it")
    if existing is not None and layout == "hdf5":
        raise DatasetError("a data set can only be converted to LeRobot's layout; for HDF5, name a recording or a run")
    if existing is not None:
        conversion.recode(open_dataset(existing), directory, layout)
    if recorded is not None:
        episodes = sources.choose(recorded, config.keep_failures)
        workers = choose_workers(config.workers, len(episodes), WORKER_GB)
        settings = (layout, config.camera_names, config.size, workers, config.scenes, not config.scenes_only)
        convert.convert(recorded, episodes, directory, *settings)
    say(summary.describe_line(open_dataset(directory)))
    say(f"data set: {display_path(directory)}\nlook at it: ./lab dataset {directory.name} --show")
    return directory


if __name__ == "__main__":
    entrypoint.run(main, expected=(ValueError, VolumeError, StoreError, RuntimeError))
