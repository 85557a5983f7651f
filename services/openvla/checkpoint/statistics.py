"""Statistics that scale actions and states, by data set: from dataset_statistics.json, or norm_stats in config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.openvla.checkpoint.oft import STATE_SIZE, Oft, find_oft
from vla_modelkit.checkpoint import CheckpointError, read_json

ACTION_TOKENS = 7  # numbers of an action, as the contract carries it
FILE = "dataset_statistics.json"
Stats = Mapping[str, tuple]  # "q01", "q99" (floats) and "mask" (bools), one for each number


@dataclass
class Statistics:
    """Data set -> statistics of actions, and of the state for OpenVLA-OFT; and why others are unusable."""

    oft: Oft | None
    action: dict[str, Stats] = field(default_factory=dict)
    proprio: dict[str, Stats] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)


def read_statistics(config: Mapping[str, Any], directory: Path) -> Statistics:
    """Return the statistics, and which kind of checkpoint they and its files are of.

    A fine-tuned checkpoint has a separate file; a published one has them in config.json. Raises CheckpointError if
    there are none, or none is usable.
    """
    statistics = read_json(directory / FILE) if (directory / FILE).is_file() else config.get("norm_stats")
    if not statistics or not isinstance(statistics, dict):
        raise CheckpointError(
            f"{directory} has neither {FILE} nor norm_stats in config.json; without them tokens cannot "
            "be turned into actions: copy the file from the run that trained the model"
        )
    result = Statistics(find_oft(directory, statistics))
    for key, value in sorted(statistics.items()):
        try:
            action = _stats(value, "action", ACTION_TOKENS)
            if result.oft and result.oft.proprio:
                result.proprio[key] = _stats(value, "proprio", STATE_SIZE)
            result.action[key] = action
        except ValueError as error:
            result.unusable[key] = f"statistics {key!r} {error}"
    if not result.action:
        raise CheckpointError(
            f"{directory}: {next(iter(result.unusable.values()))}; copy {FILE} from the run that trained the model"
        )
    return result


def _stats(value: Any, part: str, size: int) -> Stats:
    """Return a data set's statistics of `part`, whose vectors have `size` numbers. Raises ValueError."""
    entry = value.get(part) if isinstance(value, dict) else None
    if not isinstance(entry, dict) or not {"q01", "q99"} <= entry.keys():
        raise ValueError(f"have no {part} q01 and q99; expected {size} numbers each")
    stats: dict[str, tuple] = {}
    for name in ("q01", "q99"):
        values = entry[name] if isinstance(entry[name], list) else []
        if len(values) != size:
            raise ValueError(f"are for {len(values)} numbers in {name}; this service expects {size}")
        for dimension, number in enumerate(values):
            if type(number) not in (int, float) or not math.isfinite(number):
                raise ValueError(f"have {number!r} as {name} of dimension {dimension}; expected a finite number")
        stats[name] = tuple(map(float, values))
    mask = entry.get("mask", [True] * size)  # all are scaled by default, none for null, as upstream does
    mask = [False] * size if mask is None else mask
    if not isinstance(mask, list) or len(mask) != size or any(flag not in (0, 1) for flag in mask):
        raise ValueError(f"have the mask {mask!r}; expected {size} times true or false")
    return {**stats, "mask": tuple(map(bool, mask))}
