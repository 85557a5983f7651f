"""Requirements of GR00T N1.5 on a data set, beyond those of every reader, and its matching embodiments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from services.gr00t.checkpoint.embodiment import Embodiment, embodiment, shipped
from vla_datasets import hdf5, metadata
from vla_datasets.checks import Findings
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset

WIDTHS = {"state": 64, "action": 32}  # the network's limits
ANNOTATION = "annotation."
MODALITY_REQUIRED = "GR00T's loader needs it: it names the parts of state and action, the videos and the instruction"


def check(findings: Findings, robot: str | None) -> None:
    """Add findings about missing fields; robot: name of an embodiment that the data set must fit."""
    if hdf5.files(findings.directory):
        findings.add(".", "LIBERO's HDF5 files; GR00T needs LeRobot's layout: ./lab dataset NAME --format lerobot")
        return
    try:
        dataset = LeRobotDataset(findings.directory)
    except DatasetError:
        return  # reported already
    if dataset.modality is None:
        findings.add(metadata.MODALITY, f"is missing; {MODALITY_REQUIRED}")
        return
    if not dataset.modality.get("annotation"):
        text = "has no annotation; `./lab finetune` takes the instruction from task_index, upstream's loader needs one"
        findings.note(metadata.MODALITY, text)
    for name, part in (dataset.modality.get("video") or {}).items():
        _video(findings, dataset, name, (part or {}).get("original_key") or name)
    for text in misfits(dataset, embodiment(robot)) if robot else ():
        findings.add(metadata.MODALITY, f"embodiment {robot}: {text}")
    if not robot and not fitting(dataset):
        text = f"matches none of the lab's embodiments ({', '.join(shipped())})"
        findings.note(metadata.MODALITY, f"{text}; a new robot's is a JSON file, see docs/gr00t.md")


def _video(findings: Findings, dataset: LeRobotDataset, name: str, key: str) -> None:
    feature = dataset.features.get(key, {})
    old = "channel" in (feature.get("names") or ()) and "video.fps" in feature.get("video_info", {})
    new = {"video.channels", "video.fps"} <= feature.get("info", {}).keys()
    if feature and not (old or new):
        text = f"feature {key}: GR00T's loader needs names with 'channel' and video_info, or info, with video.fps"
        findings.add(metadata.INFO, text)


def misfits(dataset: LeRobotDataset, robot: Embodiment) -> Iterator[str]:
    """Yield the differences between a data set and a robot, as messages."""
    modality: dict[str, Any] = dataset.modality or {}
    needed = {"video": robot.cameras.values(), "state": robot.state, "action": robot.action}
    for kind, names in needed.items():
        available = modality.get(kind) or {}
        missing = [name for name in names if name not in available]
        if missing:
            yield f"{kind} {', '.join(missing)} missing; modality.json has {', '.join(available) or 'none'}"
        elif kind in WIDTHS:
            yield from _too_wide(kind, [(names[name].normalization, available[name]) for name in names])
    language, available = robot.language.removeprefix(ANNOTATION), modality.get("annotation") or {}
    if available and language not in available:
        yield f"annotation {language} missing; modality.json has {', '.join(available)}"


def _too_wide(kind: str, parts: list[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    ends = [(normalization, part.get("start"), part.get("end")) for normalization, part in parts]
    if not all(type(start) is int and type(end) is int for _, start, end in ends):
        yield f"{kind} has a part whose start or end is not a whole number"
        return
    sizes = [(2 if normalization == "sin_cos" else 1) * (end - start) for normalization, start, end in ends]
    if sum(sizes) > WIDTHS[kind]:
        yield f"{kind} has {sum(sizes)} numbers; the network takes {WIDTHS[kind]}"


def fitting(dataset: LeRobotDataset) -> list[str]:
    """Return the shipped embodiments that match a data set."""
    return [name for name in shipped() if not any(misfits(dataset, embodiment(name)))]
