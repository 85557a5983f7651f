"""Requirements of GR00T N1.5 on a data set, beyond those of every reader, and its matching embodiments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from services.gr00t.checkpoint.embodiment import Embodiment, embodiment, shipped
from vla_datasets import hdf5, metadata
from vla_datasets.checks import Findings
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset

WIDTHS = {"state": 64, "action": 32}  # the network's limits
COLUMNS = {"state": "observation.state", "action": "action"}  # defaults of modality.json
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
    if not parts_of(dataset, "annotation"):
        text = "has no annotation; `./lab finetune` takes the instruction from task_index, upstream's loader needs one"
        findings.note(metadata.MODALITY, text)
    for name, part in parts_of(dataset, "video").items():
        key = (part or {}).get("original_key") or name
        feature = dataset.features.get(key, {})
        old = "channel" in (feature.get("names") or ()) and "video.fps" in feature.get("video_info", {})
        if feature and not (old or {"video.channels", "video.fps"} <= feature.get("info", {}).keys()):
            text = f"feature {key}: GR00T's loader needs names with 'channel' and video_info, or info, with video.fps"
            findings.add(metadata.INFO, text)
    for text in misfits(dataset, embodiment(robot)) if robot else ():
        findings.add(metadata.MODALITY, f"embodiment {robot}: {text}")
    if not robot and not fitting(dataset):
        text = f"matches none of the lab's embodiments ({', '.join(shipped())})"
        findings.note(metadata.MODALITY, f"{text}; a new robot's is a JSON file, see docs/gr00t.md")


def parts_of(dataset: LeRobotDataset, kind: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the named parts of modality.json; kind: state, action, video or annotation."""
    return (dataset.modality or {}).get(kind) or {}


def column_of(dataset: LeRobotDataset, kind: str, name: str) -> tuple[str, slice]:
    """Return the column of a part of the state or action, and its slice."""
    part = parts_of(dataset, kind)[name]
    start, end = part.get("start"), part.get("end")
    if type(start) is not int or type(end) is not int:
        problem = f"{dataset.name}: modality.json has start {start!r} and end {end!r} of {kind} {name!r}"
        raise ValueError(f"{problem}; expected whole numbers")
    return part.get("original_key") or COLUMNS[kind], slice(start, end)


def misfits(dataset: LeRobotDataset, robot: Embodiment) -> Iterator[str]:
    """Yield the differences between a data set and a robot, as messages."""
    needed = {"video": robot.cameras.values(), "state": robot.state, "action": robot.action}
    for kind, names in needed.items():
        available = parts_of(dataset, kind)
        if missing := [name for name in names if name not in available]:
            yield f"{kind} {', '.join(missing)} missing; modality.json has {', '.join(available) or 'none'}"
        elif kind in WIDTHS:
            try:
                spans = {name: column_of(dataset, kind, name)[1] for name in names}
            except ValueError as error:
                yield str(error)
                continue
            doubled = [name for name, part in names.items() if part.normalization == "sin_cos"]
            size = sum((1 + (name in doubled)) * (span.stop - span.start) for name, span in spans.items())
            if size > WIDTHS[kind]:
                yield f"{kind} has {size} numbers; the network takes {WIDTHS[kind]}"
    language, available = robot.language.removeprefix(ANNOTATION), parts_of(dataset, "annotation")
    if available and language not in available:
        yield (
            f"annotation {language} missing; modality.json has {', '.join(available)}; "
            f'add "{language}": {{"original_key": "task_index"}} there'
        )


def fitting(dataset: LeRobotDataset) -> list[str]:
    """Return the shipped embodiments that match a data set."""
    return [name for name in shipped() if not any(misfits(dataset, embodiment(name)))]
