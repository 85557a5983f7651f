"""GR00T's modality.json against the columns and films that it names."""

from __future__ import annotations

from typing import Any

from vla_datasets import metadata
from vla_datasets.checks.fault import Findings
from vla_datasets.lerobot import LeRobotDataset

KINDS = {"state": "observation.state", "action": "action"}  # where a part lies unless it says so
EULER = tuple(f"euler_angles_{order}" for order in ("rpy", "ryp", "pry", "pyr", "yrp", "ypr"))
ROTATIONS = ("axis_angle", "quaternion", "rotation_6d", "matrix", *EULER)


def check(found: Findings, dataset: LeRobotDataset) -> None:
    """Checks every part, video and annotation."""
    given = dataset.modality or {}
    for kind in ("state", "action", "video"):
        if not isinstance(given.get(kind), dict) or not given[kind]:
            found.add(metadata.MODALITY, None, f"names no {kind}; GR00T's loader needs it")
    for kind, column in KINDS.items():
        for name, part in _entries(given, kind):
            _part(found, dataset, f"{kind}.{name}", part, column)
    for name, part in _entries(given, "video"):
        key = part.get("original_key") or name
        if dataset.features.get(key, {}).get("dtype") != "video":
            found.add(metadata.MODALITY, None, f"video.{name} is {key!r}, which info.json has no film of")
    for name, part in _entries(given, "annotation"):
        key = part.get("original_key") or f"annotation.{name}"
        if key not in dataset.features and key not in _columns(dataset):
            found.add(metadata.MODALITY, None, f"annotation.{name} is column {key!r}, which there is none of")


def _entries(given: dict[str, Any], kind: str) -> list[tuple[str, dict[str, Any]]]:
    entries = given.get(kind)
    return [(name, part or {}) for name, part in entries.items()] if isinstance(entries, dict) else []


def _columns(dataset: LeRobotDataset) -> set[str]:
    """Returns the columns of the first episode, which may be more than info.json lists."""
    try:
        return set(dataset.columns(dataset.episodes[0].index))
    except (ValueError, IndexError):
        return set()


def _part(found: Findings, dataset: LeRobotDataset, name: str, part: dict[str, Any], usual: str) -> None:
    start, end, key = part.get("start"), part.get("end"), part.get("original_key") or usual
    if type(start) is not int or type(end) is not int or not 0 <= start < end:
        found.add(metadata.MODALITY, None, f"{name}: start {start!r}, end {end!r}; expected whole numbers, start < end")
        return
    shape = dataset.features.get(key, {}).get("shape")
    if not shape:
        found.add(metadata.MODALITY, None, f"{name} is column {key!r}, which info.json does not have")
    elif end > shape[-1]:
        found.add(metadata.MODALITY, None, f"{name} ends at {end}; {key} has {shape[-1]} numbers")
    if part.get("rotation_type") not in (None, *ROTATIONS):
        found.add(
            metadata.MODALITY,
            None,
            f"{name}: rotation_type {part['rotation_type']!r} is none of {', '.join(ROTATIONS)}",
        )
