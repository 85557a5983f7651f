"""`python -m services.gr00t.data --dataset NAME`: the contents of a data set, and whether GR00T can train on it."""

from __future__ import annotations

from pathlib import Path

import tyro

from services.gr00t.checkpoint.embodiment import embodiment
from services.gr00t.data import needs
from services.gr00t.options import DataOptions
from vla_common import entrypoint
from vla_common.volume import Volume, display_path
from vla_datasets import program
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.loader import find, open_dataset
from vla_modelkit.download import fetch_data

SIMULATED = "nvidia/PhysicalAI-Robotics-GR00T-X-Embodiment-Sim"  # NVIDIA's: a directory per robot and task


def published(name: str) -> tuple[str, str, str]:
    """Return (repository, directory in it, local name of the data set). Raises ValueError for an invalid name."""
    parts = name.strip("/").split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"invalid name in --download {name!r}; expected for example gr1_arms_only.CanSort")
    if len(parts) == 1:
        return SIMULATED, name, name
    return "/".join(parts[:2]), "/".join(parts[2:]), parts[-1]


def main() -> int:
    settings = tyro.cli(DataOptions, prog="data gr00t")
    if bool(settings.dataset) == bool(settings.download):
        raise ValueError("give either --dataset NAME or --download NAME")
    if settings.embodiment:
        embodiment(settings.embodiment)
    directory = get(settings.download) if settings.download else find(settings.dataset)
    robot = settings.embodiment
    if settings.check or settings.write_stats:
        return program.read(
            directory, settings.check, False, settings.write_stats, lambda findings: needs.check(findings, robot)
        )
    dataset = open_dataset(directory)
    program.read(directory)
    if isinstance(dataset, LeRobotDataset) and dataset.modality:
        print(f"matching embodiments: {', '.join(needs.fitting(dataset)) or 'none of the lab'}")
    return program.read(directory, show=True)


def get(name: str) -> Path:
    """Download a data set onto the volume and return its directory."""
    repo, subdirectory, local_name = published(name)
    directory = fetch_data(repo, subdirectory, Volume().datasets / local_name)
    print(f"data set: {display_path(directory)}")
    return directory


if __name__ == "__main__":
    entrypoint.run(main)
