"""The robot of a data set: its embodiment and metadata, from modality.json and statistics.

metadata.json has upstream's format (Isaac-GR00T at 4af2b622, gr00t/data/dataset.py, `_get_metadata`), so its
policy loads the result too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.gr00t.checkpoint.directory import CheckpointDirectory
from services.gr00t.checkpoint.embodiment import Embodiment, Transform, embodiment, shipped, usable
from services.gr00t.service.layout import Layout, layout
from vla_contract.protocol.parts import total
from vla_datasets.lerobot import LeRobotDataset

NEW = "new_embodiment"
COLUMNS = {"state": "observation.state", "action": "action"}  # defaults of modality.json
KINDS = ("state", "action")
INSTRUCTION = "human.task_description"  # default if modality.json has no annotation: the rows' task_index


@dataclass(frozen=True)
class TrainingRobot:
    """A robot, from a data set and an embodiment."""

    embodiment: Embodiment
    metadata: Mapping[str, Any]  # its part of metadata.json
    layout: Layout


def robot_of(dataset: LeRobotDataset, name: str, base: CheckpointDirectory) -> TrainingRobot:
    """Return the robot to train for. name: new_embodiment, a shipped embodiment's name, or a JSON file.

    Raises ValueError if the data set is of another robot, or does not have what GR00T needs.
    """
    if dataset.modality is None:
        raise ValueError(
            f"{dataset.directory} has no meta/modality.json, which describes its numbers; LeRobot's tools write none: "
            "write one as docs/gr00t.md shows"
        )
    robot = described(dataset, base) if name == NEW else embodiment(name)
    if name != NEW:
        _check_names(dataset, robot)
    metadata = metadata_of(dataset, robot.tag)
    _check_sizes(dataset, robot, metadata, base)
    _check_language(dataset, robot)
    return TrainingRobot(robot, metadata, layout(robot, metadata))


def described(dataset: LeRobotDataset, base: CheckpointDirectory) -> Embodiment:
    """Return the embodiment of the data set: the base's, or a shipped one, with all its names.

    Otherwise every part is normalised with min_max, as in upstream's newer configurations, and cameras
    have the data's names. Raises ValueError if the base was trained for this robot with an unknown normalization.
    """
    names = {kind: tuple(_parts(dataset, kind)) for kind in ("video", *KINDS)}
    trained = base.metadata.get(NEW, {}).get("modalities", {})
    of_base = []
    if all(set(names[kind]) == set(trained.get(kind, ())) for kind in KINDS):
        of_base = [base.stated()]
        if of_base == [None]:
            raise ValueError(
                f"base {base.directory.name} was trained for this robot; nothing states how its numbers are scaled; "
                f"give --embodiment: {', '.join(usable(base.metadata)) or 'a JSON file'}"
            )
    for robot in (*of_base, *map(embodiment, shipped())):
        robot_names = {
            "video": tuple(robot.cameras.values()),
            "state": tuple(robot.state),
            "action": tuple(robot.action),
        }
        if robot.tag == NEW and robot_names == names:
            return robot
    return Embodiment(
        name=dataset.name,
        tag=NEW,
        cameras={key: key for key in names["video"]},
        language=f"annotation.{next(iter(_parts(dataset, 'annotation')), INSTRUCTION)}",
        **{kind: {key: _transform(part) for key, part in _parts(dataset, kind).items()} for kind in KINDS},
        source=f"modality.json of data set {dataset.name}",
    )


def _transform(part: Mapping[str, Any]) -> Transform:
    return Transform("min_max" if _continuous(part) else "binary")


def _continuous(part: Mapping[str, Any]) -> bool:
    return bool(np.issubdtype(np.dtype(part.get("dtype") or "float64"), np.floating))


def _parts(dataset: LeRobotDataset, kind: str) -> Mapping[str, Mapping[str, Any]]:
    return dataset.modality.get(kind) or {}


def column_of(dataset: LeRobotDataset, kind: str, name: str) -> tuple[str, slice]:
    """Return the column of a part of the state or action, and its slice."""
    part = _parts(dataset, kind)[name]
    start, end = part.get("start"), part.get("end")
    if type(start) is not int or type(end) is not int:
        problem = f"{dataset.name}: modality.json has start {start!r} and end {end!r} of {kind} {name!r}"
        raise ValueError(f"{problem}; expected whole numbers")
    return part.get("original_key") or COLUMNS[kind], slice(start, end)


def video_key(dataset: LeRobotDataset, name: str) -> str:
    """Return the feature of a camera's images."""
    return _parts(dataset, "video")[name].get("original_key") or name


def language_column(dataset: LeRobotDataset, language: str) -> str:
    """Return the column with the number of the instruction. language: annotation.NAME."""
    part = _parts(dataset, "annotation").get(language.removeprefix("annotation."))
    return "task_index" if part is None else part.get("original_key") or language


def metadata_of(dataset: LeRobotDataset, tag: str) -> dict[str, Any]:
    """Return the robot's part of metadata.json. Raises ValueError if modality.json and data do not agree."""
    stated = dataset.statistics()
    statistics: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    modalities: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    for kind in KINDS:
        for name, part in _parts(dataset, kind).items():
            column, span = column_of(dataset, kind, name)
            statistics[kind][name] = _sliced(dataset, stated, f"{kind} {name!r}", column, span)
            modalities[kind][name] = {
                "absolute": part.get("absolute", True),
                "rotation_type": part.get("rotation_type"),
                "shape": [span.stop - span.start],
                "continuous": _continuous(part),
            }
    videos = {name: _video(dataset, name) for name in _parts(dataset, "video")}
    return {"statistics": statistics, "modalities": {"video": videos, **modalities}, "embodiment_tag": tag}


def _sliced(
    dataset: LeRobotDataset, stated: Mapping[str, Mapping[str, Any]], label: str, column: str, span: slice
) -> dict[str, list[float]]:
    if column not in stated:
        raise ValueError(
            f"{dataset.name}: modality.json takes {label} from column {column}, which the rows do not have"
        )
    columns = {name: np.asarray(numbers, np.float64).reshape(-1) for name, numbers in stated[column].items()}
    size = min(len(numbers) for numbers in columns.values())
    if not 0 <= span.start < span.stop <= size:
        raise ValueError(
            f"{dataset.name}: modality.json takes {label} from {column}[{span.start}:{span.stop}]; the column has "
            f"{size} numbers"
        )
    return {name: numbers[span].tolist() for name, numbers in columns.items()}


def _video(dataset: LeRobotDataset, name: str) -> dict[str, Any]:
    key = video_key(dataset, name)
    if key not in dataset.video_keys:
        available = ", ".join(dataset.video_keys) or "none"
        raise ValueError(f"{dataset.name}: modality.json takes camera {name!r} from {key}; info.json has {available}")
    feature = dataset.features[key]
    sizes = dict(zip(feature.get("names") or ("height", "width", "channels"), feature["shape"], strict=False))
    return {"resolution": [sizes["width"], sizes["height"]], "channels": 3, "fps": dataset.fps}


def _check_names(dataset: LeRobotDataset, robot: Embodiment) -> None:
    robot_names = {"video": tuple(robot.cameras.values()), "state": tuple(robot.state), "action": tuple(robot.action)}
    for kind, needed in robot_names.items():
        available = tuple(_parts(dataset, kind))
        if missing := [name for name in needed if name not in available]:
            label = "camera" if kind == "video" else kind
            raise ValueError(
                f"data set {dataset.name} has no {label} {missing[0]!r}, which robot {robot.name!r} needs; it has "
                f"{', '.join(available) or 'none'}. Choose its robot with --embodiment, or remove the flag: then "
                "modality.json describes the robot"
            )


def _check_language(dataset: LeRobotDataset, robot: Embodiment) -> None:
    """Raise ValueError if modality.json has annotations but not the robot's; without any, task_index is the column."""
    annotations, name = _parts(dataset, "annotation"), robot.language.removeprefix("annotation.")
    if annotations and name not in annotations:
        raise ValueError(
            f"data set {dataset.name} has no annotation {name!r}, which robot {robot.name!r} takes its instruction "
            f'from; modality.json has {", ".join(annotations)}; add "{name}": {{"original_key": "task_index"}} there'
        )


def _check_sizes(
    dataset: LeRobotDataset, robot: Embodiment, metadata: Mapping[str, Any], base: CheckpointDirectory
) -> None:
    """Raise ValueError if the sizes differ from the robot's description or from the base's training."""
    modalities = base.metadata.get(robot.tag, {}).get("modalities", {}) if robot.tag != NEW else {}
    for kind in KINDS:
        sizes = {name: metadata["modalities"][kind][name]["shape"][0] for name in getattr(robot, kind)}
        parts = getattr(robot, f"{kind}_parts")
        if parts and total(parts) != sum(sizes.values()):
            raise ValueError(
                f"data set {dataset.name} has a {kind} of {sum(sizes.values())} numbers; robot {robot.name!r} has "
                f"{total(parts)}: choose its robot with --embodiment"
            )
        for name, size in sizes.items():
            trained = modalities.get(kind, {}).get(name, {}).get("shape", [size])[0]
            if trained != size:
                raise ValueError(
                    f"data set {dataset.name} has {kind} {name!r} of {size} numbers; {base.directory.name} was trained "
                    f"for {robot.tag} with {trained}: train it as a new robot, --embodiment new_embodiment"
                )
