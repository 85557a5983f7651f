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
from services.gr00t.data.needs import ANNOTATION, column_of, misfits, parts_of
from services.gr00t.service.layout import Layout, layout
from vla_datasets.lerobot import LeRobotDataset

NEW = "new_embodiment"
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
    if problems := list(misfits(dataset, robot)):
        raise ValueError(
            f"data set {dataset.name} does not match robot {robot.name!r}: {'; '.join(problems)}. Choose its robot "
            "with --embodiment, or remove the flag: then modality.json describes the robot"
        )
    metadata = metadata_of(dataset, robot.tag)
    trained = base.metadata.get(robot.tag, {}).get("modalities", {}) if robot.tag != NEW else {}
    for kind, part in [("state", part) for part in robot.state] + [("action", part) for part in robot.action]:
        size = metadata["modalities"][kind][part]["shape"][0]
        trained_size = trained.get(kind, {}).get(part, {}).get("shape", [size])[0]
        if trained_size != size:
            raise ValueError(
                f"data set {dataset.name} has {kind} {part!r} of {size} numbers; {base.directory.name} was trained "
                f"for {robot.tag} with {trained_size}: train it as a new robot, --embodiment new_embodiment"
            )
    return TrainingRobot(robot, metadata, layout(robot, metadata))


def described(dataset: LeRobotDataset, base: CheckpointDirectory) -> Embodiment:
    """Return the embodiment of the data set: the base's, or a shipped one, with all its names.

    Otherwise every part is normalised with min_max, as in upstream's newer configurations, and cameras
    have the data's names. Raises ValueError if the base was trained for this robot with an unknown normalization.
    """
    names = {kind: tuple(parts_of(dataset, kind)) for kind in ("video", *KINDS)}
    trained = base.metadata.get(NEW, {}).get("modalities", {})
    candidates = [embodiment(name) for name in shipped()]
    if all(set(names[kind]) == set(trained.get(kind, ())) for kind in KINDS):
        if (of_base := base.stated()) is None:
            raise ValueError(
                f"base {base.directory.name} was trained for this robot; nothing states how its numbers are scaled; "
                f"give --embodiment: {', '.join(usable(base.metadata)) or 'a JSON file'}"
            )
        candidates.insert(0, of_base)
    for robot in candidates:
        named = {"video": tuple(robot.cameras.values()), "state": tuple(robot.state), "action": tuple(robot.action)}
        if robot.tag == NEW and named == names:
            return robot
    parts = {kind: parts_of(dataset, kind).items() for kind in KINDS}
    transforms = {
        kind: {key: Transform("min_max" if _continuous(part) else "binary") for key, part in items}
        for kind, items in parts.items()
    }
    return Embodiment(
        name=dataset.name,
        tag=NEW,
        cameras={key: key for key in names["video"]},
        language=f"{ANNOTATION}{next(iter(parts_of(dataset, 'annotation')), INSTRUCTION)}",
        **transforms,
        source=f"modality.json of data set {dataset.name}",
    )


def _continuous(part: Mapping[str, Any]) -> bool:
    return bool(np.issubdtype(np.dtype(part.get("dtype") or "float64"), np.floating))


def video_key(dataset: LeRobotDataset, name: str) -> str:
    """Return the feature of a camera's images."""
    return parts_of(dataset, "video")[name].get("original_key") or name


def language_column(dataset: LeRobotDataset, language: str) -> str:
    """Return the column with the number of the instruction. language: annotation.NAME."""
    part = parts_of(dataset, "annotation").get(language.removeprefix(ANNOTATION))
    return "task_index" if part is None else part.get("original_key") or language


def metadata_of(dataset: LeRobotDataset, tag: str) -> dict[str, Any]:
    """Return the robot's part of metadata.json. Raises ValueError if modality.json and data do not agree."""
    stated = dataset.statistics()
    statistics: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    modalities: dict[str, dict[str, Any]] = {kind: {} for kind in ("video", *KINDS)}
    named = [(kind, name, part) for kind in KINDS for name, part in parts_of(dataset, kind).items()]
    for kind, name, part in named:
        column, span = column_of(dataset, kind, name)
        label = f"{dataset.name}: modality.json takes {kind} {name!r} from"
        if column not in stated:
            raise ValueError(f"{label} column {column}, which the rows do not have")
        columns = {key: np.asarray(numbers, np.float64).reshape(-1) for key, numbers in stated[column].items()}
        size = min(map(len, columns.values()))
        if not 0 <= span.start < span.stop <= size:
            raise ValueError(f"{label} {column}[{span.start}:{span.stop}]; the column has {size} numbers")
        statistics[kind][name] = {key: numbers[span].tolist() for key, numbers in columns.items()}
        modalities[kind][name] = {
            "absolute": part.get("absolute", True),
            "rotation_type": part.get("rotation_type"),
            "shape": [span.stop - span.start],
            "continuous": _continuous(part),
        }
    for name in parts_of(dataset, "video"):
        key = video_key(dataset, name)
        if key not in dataset.video_keys:
            cameras = ", ".join(dataset.video_keys) or "none"
            raise ValueError(f"{dataset.name}: modality.json takes camera {name!r} from {key}; info.json has {cameras}")
        feature = dataset.features[key]
        sizes = dict(zip(feature.get("names") or ("height", "width", "channels"), feature["shape"], strict=False))
        modalities["video"][name] = {
            "resolution": [sizes["width"], sizes["height"]], "channels": 3, "fps": dataset.fps,
        }  # fmt: skip
    return {"statistics": statistics, "modalities": modalities, "embodiment_tag": tag}
