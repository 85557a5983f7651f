"""`python -m services.gr00t.data --dataset NAME`: what is in a data set, and whether GR00T can learn from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from services.gr00t.checkpoint.embodiment import embodiment
from services.gr00t.data import needs
from vla_common import endings
from vla_common.volume import Volume, shown
from vla_datasets import program
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.opening import find, open_dataset
from vla_modelkit.data_download import fetch_data

SIMULATED = "nvidia/PhysicalAI-Robotics-GR00T-X-Embodiment-Sim"  # NVIDIA's: a folder per robot and task


@dataclass(frozen=True)
class Data:
    """Say what is in a data set for GR00T: schema, episodes, tasks, statistics, and a page with films and curves."""

    dataset: str | None = None
    """A data set on the volume, or its folder."""
    embodiment: str | None = None
    """Check that it fits this embodiment: a name, or the path of its JSON file."""
    check: bool = False
    """Read it back whole and name every fault, what GR00T needs included."""
    write_stats: bool = False
    """Write its statistics in meta/ anew from its rows and frames."""
    download: str | None = None
    """Get a published one first: the name of NVIDIA's simulated ones, or OWNER/NAME[/FOLDER] on the hub."""

    def __post_init__(self):
        if bool(self.dataset) == bool(self.download):
            raise ValueError("name a data set with --dataset, or one to get with --download")
        if self.embodiment:
            embodiment(self.embodiment)


def published(name: str) -> tuple[str, str, str]:
    """Returns (repository, folder in it, what the data set is called here). Raises ValueError for what is no name."""
    parts = name.strip("/").split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"--download {name!r} is no name on the hub; expected for example gr1_arms_only.CanSort")
    if len(parts) == 1:
        return SIMULATED, name, name
    return "/".join(parts[:2]), "/".join(parts[2:]), parts[-1]


def main() -> int:
    """Does what the flags say; returns the exit code."""
    settings = tyro.cli(Data, prog="data gr00t")
    folder = get(settings.download) if settings.download else find(settings.dataset)
    wanted = settings.embodiment
    if settings.check or settings.write_stats:
        return program.read(
            folder, settings.check, False, settings.write_stats, lambda found: needs.check(found, wanted)
        )
    dataset = open_dataset(folder)
    program.read(folder)
    if isinstance(dataset, LeRobotDataset) and dataset.modality:
        print(f"embodiments that it fits: {', '.join(needs.fitting(dataset)) or 'none of those here'}")
    return program.read(folder, show=True)


def get(name: str) -> Path:
    """Downloads a data set onto the volume; returns its folder."""
    repo, below, called = published(name)
    folder = fetch_data(repo, below, Volume().datasets / called)
    print(f"data set: {shown(folder)}")
    return folder


if __name__ == "__main__":
    endings.run(main)
