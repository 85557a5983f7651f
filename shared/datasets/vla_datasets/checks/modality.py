"""GR00T's modality.json against the columns and films that it names."""

from __future__ import annotations

import itertools
from typing import Any

from vla_datasets import metadata
from vla_datasets.checks.fault import Findings
from vla_datasets.checks.rows import Totals
from vla_datasets.lerobot import LeRobotDataset

KINDS = {"state": "observation.state", "action": "action"}  # where a part lies unless it says so
EULER = tuple(f"euler_angles_{order}" for order in ("rpy", "ryp", "pry", "pyr", "yrp", "ypr"))
ROTATIONS = ("axis_angle", "quaternion", "rotation_6d", "matrix", *EULER)


def check(found: Findings, dataset: LeRobotDataset, totals: Totals) -> None:
    """Checks every part, video and annotation."""
    given = dataset.modality or {}
    columns = set(next(iter(totals.columns.values()), ()))  # may be more than info.json lists
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
    _exchanged(found, _entries(given, "video"))
    for kind, column in KINDS.items():
        _overlaps(found, kind, _entries(given, kind), column)
    for name, part in _entries(given, "annotation"):
        key = part.get("original_key") or f"annotation.{name}"
        if key not in dataset.features and totals.columns and key not in columns:
            found.add(metadata.MODALITY, None, f"annotation.{name} is column {key!r}, which there is none of")


def _entries(given: dict[str, Any], kind: str) -> list[tuple[str, dict[str, Any]]]:
    entries = given.get(kind)
    return [(name, part or {}) for name, part in entries.items()] if isinstance(entries, dict) else []


def _exchanged(findings: Findings, videos: list[tuple[str, dict[str, Any]]]) -> None:
    """Check for a camera whose video is called as another camera is, and for a video that two cameras name."""
    keys = {name: str(part.get("original_key") or name) for name, part in videos}
    for name, key in keys.items():
        last = key.rpartition(".")[2]
        if last != name and last in keys and keys[last] != key:
            findings.add(
                metadata.MODALITY, None, f"video.{name} is {key!r}, which is called as video.{last}: exchanged"
            )
    for name, key in keys.items():
        if (first := next(one for one in keys if keys[one] == key)) != name:
            findings.add(metadata.MODALITY, None, f"video.{name} is {key!r}, which is video.{first}, too")


def _overlaps(findings: Findings, kind: str, parts: list[tuple[str, dict[str, Any]]], usual: str) -> None:
    ranges = [
        (str(part.get("original_key") or usual), part["start"], part["end"], name)
        for name, part in parts
        if type(part.get("start")) is int and type(part.get("end")) is int
    ]
    for (column, start, end, name), (other_column, other_start, _, other) in itertools.pairwise(sorted(ranges)):
        if column == other_column and start <= other_start < end:
            text = f"{kind}.{other} starts at {other_start} in {kind}.{name}, {column}[{start}:{end}]: they overlap"
            findings.add(metadata.MODALITY, None, text)


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
