"""Detect OpenVLA-OFT checkpoints, which look like OpenVLA's, by their extra files and statistics.

OpenVLA-OFT (moojink/openvla-oft) keeps model_type "openvla" and the names of every tensor. Its extra files make it
another model (vla-scripts/finetune.py): a head that turns hidden states into a chunk of actions, where OpenVLA reads
tokens, and a projector of the robot's state. Served as OpenVLA it answers nonsense without an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from typing import Any

from vla_modelkit.checkpoint import CheckpointError

OFT_FILES = ("action_head--*", "proprio_projector--*", "noisy_action_projector--*", "vision_backbone--*")


def reject_oft_files(source: object, names: Iterable[str]) -> None:
    """Raise CheckpointError if a listing has a file of OpenVLA-OFT; `source` is a directory or a repository."""
    for name in sorted(names):
        if any(fnmatch(name, part) for part in OFT_FILES):
            raise _oft_error(source, f"it has {name}")


def reject_oft_statistics(source: object, statistics: Mapping[str, Any]) -> None:
    """Raise CheckpointError if a data set has statistics of the robot's state, which is not an input of OpenVLA.

    OpenVLA's own training writes zeros there (prismatic/vla/datasets/rlds/utils/data_utils.py).
    """
    for key, value in statistics.items():
        proprio = value.get("proprio") if isinstance(value, dict) else None
        if isinstance(proprio, dict) and any(_is_nonzero(numbers) for numbers in proprio.values()):
            raise _oft_error(source, f"its statistics {key!r} include the robot's state ('proprio')")


def _is_nonzero(numbers: object) -> bool:
    return isinstance(numbers, list) and any(number != 0 for number in numbers)


def _oft_error(source: object, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{source} is a checkpoint of OpenVLA-OFT ({reason}), which this service does not support; use one of "
        "OpenVLA, for example `./lab checkpoint openvla --suite libero_goal`"
    )
