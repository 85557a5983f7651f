"""`python -m services.gr00t.data --dataset NAME`: what is in a data set, and whether GR00T can learn from it."""

from __future__ import annotations

from pathlib import Path

import tyro

from services.gr00t.checkpoint.embodiment import embodiment
from services.gr00t.data import needs
from services.gr00t.options import DataOptions
from vla_common import endings
from vla_common.volume import Volume, shown
from vla_datasets import program
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.opening import find, open_dataset
from vla_modelkit.data_download import fetch_data

SIMULATED = "nvidia/PhysicalAI-Robotics-GR00T-X-Embodiment-Sim"  # NVIDIA's: a folder per robot and task


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
    settings = tyro.cli(DataOptions, prog="data gr00t")
    if bool(settings.dataset) == bool(settings.download):
        raise ValueError("name a data set with --dataset, or one to get with --download")
    if settings.embodiment:
        embodiment(settings.embodiment)
    directory = get(settings.download) if settings.download else find(settings.dataset)
    wanted = settings.embodiment
    if settings.check or settings.write_stats:
        return program.read(
            directory, settings.check, False, settings.write_stats, lambda found: needs.check(found, wanted)
        )
    dataset = open_dataset(directory)
    program.read(directory)
    if isinstance(dataset, LeRobotDataset) and dataset.modality:
        print(f"embodiments that it fits: {', '.join(needs.fitting(dataset)) or 'none of those here'}")
    return program.read(directory, show=True)


def get(name: str) -> Path:
    """Downloads a data set onto the volume; returns its folder."""
    repo, below, called = published(name)
    directory = fetch_data(repo, below, Volume().datasets / called)
    print(f"data set: {shown(directory)}")
    return directory


if __name__ == "__main__":
    endings.run(main)
