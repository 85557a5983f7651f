"""The gripper of a policy that was trained on the lab's sets of LIBERO, in the convention that LeRobot's LIBERO has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lerobot.utils.constants import ACTION
from safetensors.torch import load_file, save_file

from vla_contract.protocol.parts import GRIPPER_OPENS
from vla_datasets.lerobot import LeRobotDataset

LOCATIONS = ("mean", "min", "max", "q")  # beginnings of the statistics' names that are values of an action


def opens(dataset: LeRobotDataset) -> bool:
    """Return whether the data set states that its gripper is 0 closed, 1 open."""
    action: list[dict[str, Any]] = (dataset.source or {}).get("action") or [{}]
    return bool(action[-1].get("convention") == GRIPPER_OPENS.convention)


def invert(directory: Path) -> None:
    """Change a checkpoint's gripper from 0 closed, 1 open to -1 open, 1 closed, in the statistics of its processors.

    With those of 1 - 2a in place of an action a, the weights stay as they are: un-normalizing gives the new command,
    and normalizing takes it back. The standard deviation becomes negative.
    """
    for path in directory.glob("policy_*processor*.safetensors"):
        tensors = load_file(path)
        for name, values in tensors.items():
            feature, _, statistic = name.rpartition(".")
            if feature == ACTION and statistic == "std":
                values[-1] *= -2
            elif feature == ACTION and statistic.startswith(LOCATIONS):
                values[-1] = 1 - 2 * values[-1]
        save_file(tensors, path)
