"""Checkpoints that look like OpenVLA's and are another model's: told by what lies beside the weights.

OpenVLA-OFT (moojink/openvla-oft) keeps model_type "openvla" and the names of every tensor. Files of its own make it
another model (vla-scripts/finetune.py): a head that turns hidden states into a chunk of actions, where OpenVLA reads
tokens, and a projector of the robot's state. Served as OpenVLA it answers nonsense without an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from typing import Any

from vla_modelkit.checkpoint import CheckpointError

PARTS = ("action_head--*", "proprio_projector--*", "noisy_action_projector--*", "vision_backbone--*")


def refuse_other_files(where: object, names: Iterable[str]) -> None:
    """Raises CheckpointError where a listing holds a part of OpenVLA-OFT; `where` is a folder or a repository."""
    for name in sorted(names):
        if any(fnmatch(name, part) for part in PARTS):
            raise _refused(where, f"it holds {name}")


def refuse_other_statistics(where: object, statistics: Mapping[str, Any]) -> None:
    """Raises CheckpointError where a data set has statistics of a robot's state, which OpenVLA is not shown.

    OpenVLA's own training writes zeros there (prismatic/vla/datasets/rlds/utils/data_utils.py).
    """
    for key, value in statistics.items():
        proprio = value.get("proprio") if isinstance(value, dict) else None
        if isinstance(proprio, dict) and any(_says_something(numbers) for numbers in proprio.values()):
            raise _refused(where, f"its statistics {key!r} are of the robot's state ('proprio') as well")


def _says_something(numbers: object) -> bool:
    return isinstance(numbers, list) and any(number != 0 for number in numbers)


def _refused(where: object, why: str) -> CheckpointError:
    return CheckpointError(
        f"{where} is a checkpoint of OpenVLA-OFT ({why}), another model that this service does not run; take one of "
        "OpenVLA, for example `./lab checkpoint openvla --suite libero_goal`"
    )
