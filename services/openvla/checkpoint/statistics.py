"""The statistics that scale actions, by data set: from dataset_statistics.json, else norm_stats in config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.openvla.checkpoint.oft import reject_oft_statistics
from vla_modelkit.checkpoint import CheckpointError, read_json

ACTION_TOKENS = 7  # numbers of an action, as the contract carries it
FILE = "dataset_statistics.json"
Stats = Mapping[str, tuple]  # "q01", "q99" (floats) and "mask" (bools), seven each


def read_statistics(config: Mapping[str, Any], directory: Path) -> tuple[dict[str, Stats], dict[str, str]]:
    """Return data set -> statistics, and data set -> error message for unusable ones.

    A fine-tuned checkpoint has a separate file; a published one has them in config.json. Raises CheckpointError if
    there are none, or none is usable.
    """
    statistics = read_json(directory / FILE) if (directory / FILE).is_file() else config.get("norm_stats")
    if not statistics or not isinstance(statistics, dict):
        raise CheckpointError(
            f"{directory} has neither {FILE} nor norm_stats in config.json; without them tokens cannot "
            "be turned into actions: copy the file from the run that trained the model"
        )
    reject_oft_statistics(directory, statistics)
    good: dict[str, Stats] = {}
    bad: dict[str, str] = {}
    for key, value in sorted(statistics.items()):
        try:
            good[key] = _action_stats(value)
        except ValueError as error:
            bad[key] = f"statistics {key!r} {error}"
    if not good:
        raise CheckpointError(
            f"{directory}: {next(iter(bad.values()))}; copy {FILE} from the run that trained the model"
        )
    return good, bad


def _action_stats(value: Any) -> Stats:
    action = value.get("action") if isinstance(value, dict) else None
    if not isinstance(action, dict) or not {"q01", "q99"} <= action.keys():
        raise ValueError("have no action q01 and q99; expected seven numbers each")
    bounds = {name: _numbers(name, action[name]) for name in ("q01", "q99")}
    return {**bounds, "mask": _mask(action)}


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    if not isinstance(values, list) or len(values) != ACTION_TOKENS:
        count = len(values) if isinstance(values, list) else 0
        raise ValueError(f"are for {count} numbers in {name}; this service answers {ACTION_TOKENS}")
    for dimension, value in enumerate(values):
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f"have {value!r} as {name} of dimension {dimension}; expected a finite number")
    return tuple(float(value) for value in values)


def _mask(action: Mapping[str, Any]) -> tuple[bool, ...]:
    """Return which numbers are scaled: all by default, none for null, as upstream does."""
    mask = action.get("mask", [True] * ACTION_TOKENS)
    if mask is None:
        return (False,) * ACTION_TOKENS
    if not isinstance(mask, list) or len(mask) != ACTION_TOKENS or any(flag not in (0, 1) for flag in mask):
        raise ValueError(f"have the mask {mask!r}; expected {ACTION_TOKENS} times true or false")
    return tuple(bool(flag) for flag in mask)
