"""Check GR00T's modality.json: every part, video and annotation that it names."""

from __future__ import annotations

import itertools
from typing import Any

from vla_datasets import metadata
from vla_datasets.checks import Findings
from vla_datasets.lerobot import LeRobotDataset

KINDS = {"state": metadata.STATE, "action": metadata.ACTION}  # a part's column if it names none
EULER = tuple(f"euler_angles_{order}" for order in ("rpy", "ryp", "pry", "pyr", "yrp", "ypr"))
ROTATIONS = ("axis_angle", "quaternion", "rotation_6d", "matrix", *EULER)


def check_modality(findings: Findings, dataset: LeRobotDataset, columns: dict[str, Any] | None) -> None:
    """Add faults of the set's modality.json. columns: of an episode's rows, if any could be read; may be more than
    info.json lists.
    """
    modality = dataset.modality or {}

    def add(text: str) -> None:
        findings.add(metadata.MODALITY, text)

    def entries(kind: str) -> list[tuple[str, dict[str, Any]]]:
        parts = modality.get(kind)
        return [(name, part or {}) for name, part in parts.items()] if isinstance(parts, dict) else []

    for kind in ("state", "action", "video"):
        if not isinstance(modality.get(kind), dict) or not modality[kind]:
            add(f"names no {kind}; GR00T's loader needs it")
    for kind, usual in KINDS.items():
        ranges = []
        for name, part in entries(kind):
            start, end, key = part.get("start"), part.get("end"), str(part.get("original_key") or usual)
            if type(start) is not int or type(end) is not int or not 0 <= start < end:
                add(f"{kind}.{name}: start {start!r}, end {end!r}; expected integers, start < end")
                continue
            ranges.append((key, start, end, name))
            shape, rotation = dataset.features.get(key, {}).get("shape"), part.get("rotation_type")
            if not shape:
                add(f"{kind}.{name} is column {key!r}, which info.json does not have")
            elif end > shape[-1]:
                add(f"{kind}.{name} ends at {end}; {key} has {shape[-1]} numbers")
            if rotation not in (None, *ROTATIONS):
                add(f"{kind}.{name}: rotation_type {rotation!r} is none of {', '.join(ROTATIONS)}")
        for (key, start, end, name), (other_key, other_start, _, other) in itertools.pairwise(sorted(ranges)):
            if key == other_key and other_start < end:
                add(f"{kind}.{other} starts at {other_start} in {kind}.{name}, {key}[{start}:{end}]: they overlap")
    keys = {name: str(part.get("original_key") or name) for name, part in entries("video")}
    for name, key in keys.items():
        last = key.rpartition(".")[2]
        if dataset.features.get(key, {}).get("dtype") != "video":
            add(f"video.{name} is {key!r}, which is not a video in info.json")
        if last != name and last in keys and keys[last] != key:
            add(f"video.{name} is {key!r}, the name of video.{last}: exchanged")
        if (first := next(camera for camera in keys if keys[camera] == key)) != name:
            add(f"video.{name} is {key!r}, which is also video.{first}")
    for name, part in entries("annotation"):
        key = part.get("original_key") or f"annotation.{name}"
        if key not in dataset.features and columns is not None and key not in columns:
            add(f"annotation.{name} is column {key!r}, which no table has")
