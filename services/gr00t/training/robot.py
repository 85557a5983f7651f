"""A data set's robot: what its modality.json and statistics say, as a checkpoint keeps it.

metadata.json is as upstream writes it (Isaac-GR00T at 4af2b622, gr00t/data/dataset.py, `_get_metadata`), so that its
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
COLUMNS = {"state": "observation.state", "action": "action"}  # where modality.json names none
KINDS = ("state", "action")
INSTRUCTION = "human.task_description"  # where modality.json has no annotation: the rows' task_index


@dataclass(frozen=True)
class Robot:
    """A robot as a data set and an embodiment describe it together."""

    embodiment: Embodiment
    metadata: Mapping[str, Any]  # its part of metadata.json
    layout: Layout


def robot_of(dataset: LeRobotDataset, name: str, base: CheckpointDirectory) -> Robot:
    """Returns the robot to train for. name: new_embodiment, a shipped embodiment's name, or a JSON file.

    Raises ValueError where the data set is another robot's, or lacks what GR00T needs.
    """
    if dataset.modality is None:
        raise ValueError(
            f"{dataset.directory} has no meta/modality.json, which says what its numbers are; write one as "
            "docs/gr00t.md shows"
        )
    one = described(dataset, base) if name == NEW else embodiment(name)
    if name != NEW:
        _refuse_other_names(dataset, one)
    metadata = metadata_of(dataset, one.tag)
    _refuse_other_sizes(dataset, one, metadata, base)
    _refuse_other_language(dataset, one)
    return Robot(one, metadata, layout(one, metadata))


def described(dataset: LeRobotDataset, base: CheckpointDirectory) -> Embodiment:
    """Returns the embodiment that the data set itself describes: the base's or a shipped one with all its names.

    Else every part is normalised by its smallest and largest value, as upstream's newer configurations do, and cameras
    are called as in the data. Raises ValueError where the base was trained for this robot in a scale nothing states.
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
    for one in (*of_base, *map(embodiment, shipped())):
        own = {"video": tuple(one.cameras.values()), "state": tuple(one.state), "action": tuple(one.action)}
        if one.tag == NEW and own == names:
            return one
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
    """Returns the column that holds a part of the state or action, and where in it."""
    part = _parts(dataset, kind)[name]
    start, end = part.get("start"), part.get("end")
    if type(start) is not int or type(end) is not int:
        what = f"{dataset.name}: modality.json has start {start!r} and end {end!r} of {kind} {name!r}"
        raise ValueError(f"{what}; expected whole numbers")
    return part.get("original_key") or COLUMNS[kind], slice(start, end)


def video_key(dataset: LeRobotDataset, name: str) -> str:
    """Returns the feature that holds a camera's pictures."""
    return _parts(dataset, "video")[name].get("original_key") or name


def language_column(dataset: LeRobotDataset, language: str) -> str:
    """Returns the column with the number of the instruction. language: annotation.NAME."""
    part = _parts(dataset, "annotation").get(language.removeprefix("annotation."))
    return "task_index" if part is None else part.get("original_key") or language


def metadata_of(dataset: LeRobotDataset, tag: str) -> dict[str, Any]:
    """Returns the robot's part of metadata.json. Raises ValueError where modality.json and data do not agree."""
    stated = dataset.statistics()
    statistics: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    modalities: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    for kind in KINDS:
        for name, part in _parts(dataset, kind).items():
            column, place = column_of(dataset, kind, name)
            statistics[kind][name] = _sliced(dataset, stated, f"{kind} {name!r}", column, place)
            modalities[kind][name] = {
                "absolute": part.get("absolute", True),
                "rotation_type": part.get("rotation_type"),
                "shape": [place.stop - place.start],
                "continuous": _continuous(part),
            }
    videos = {name: _video(dataset, name) for name in _parts(dataset, "video")}
    return {"statistics": statistics, "modalities": {"video": videos, **modalities}, "embodiment_tag": tag}


def _sliced(
    dataset: LeRobotDataset, stated: Mapping[str, Mapping[str, Any]], what: str, column: str, place: slice
) -> dict[str, list[float]]:
    if column not in stated:
        raise ValueError(f"{dataset.name}: modality.json takes {what} from column {column}, which the rows do not have")
    found = {name: np.asarray(values, np.float64).reshape(-1) for name, values in stated[column].items()}
    size = min(len(values) for values in found.values())
    if not 0 <= place.start < place.stop <= size:
        raise ValueError(
            f"{dataset.name}: modality.json takes {what} from {column}[{place.start}:{place.stop}]; the column has "
            f"{size} numbers"
        )
    return {name: values[place].tolist() for name, values in found.items()}


def _video(dataset: LeRobotDataset, name: str) -> dict[str, Any]:
    key = video_key(dataset, name)
    if key not in dataset.video_keys:
        there = ", ".join(dataset.video_keys) or "none"
        raise ValueError(f"{dataset.name}: modality.json takes camera {name!r} from {key}; info.json has {there}")
    feature = dataset.features[key]
    sizes = dict(zip(feature.get("names") or ("height", "width", "channels"), feature["shape"], strict=False))
    return {"resolution": [sizes["width"], sizes["height"]], "channels": 3, "fps": dataset.fps}


def _refuse_other_names(dataset: LeRobotDataset, one: Embodiment) -> None:
    own = {"video": tuple(one.cameras.values()), "state": tuple(one.state), "action": tuple(one.action)}
    for kind, needed in own.items():
        there = tuple(_parts(dataset, kind))
        if missing := [name for name in needed if name not in there]:
            what = "camera" if kind == "video" else kind
            raise ValueError(
                f"data set {dataset.name} has no {what} {missing[0]!r}, which robot {one.name!r} needs; it has "
                f"{', '.join(there) or 'none'}. Choose its own robot with --embodiment, or leave that out: then "
                "modality.json says what it is"
            )


def _refuse_other_language(dataset: LeRobotDataset, robot: Embodiment) -> None:
    """Raise ValueError where modality.json has annotations and not the robot's; with none, task_index is the column."""
    annotations, name = _parts(dataset, "annotation"), robot.language.removeprefix("annotation.")
    if annotations and name not in annotations:
        raise ValueError(
            f"data set {dataset.name} has no annotation {name!r}, which robot {robot.name!r} takes its instruction "
            f'from; modality.json has {", ".join(annotations)}; add "{name}": {{"original_key": "task_index"}} there'
        )


def _refuse_other_sizes(
    dataset: LeRobotDataset, one: Embodiment, metadata: Mapping[str, Any], base: CheckpointDirectory
) -> None:
    """Raises ValueError where the robot is known with other sizes: by its description, or by the base's training."""
    known = base.metadata.get(one.tag, {}).get("modalities", {}) if one.tag != NEW else {}
    for kind in KINDS:
        sizes = {name: metadata["modalities"][kind][name]["shape"][0] for name in getattr(one, kind)}
        parts = getattr(one, f"{kind}_parts")
        if parts and total(parts) != sum(sizes.values()):
            raise ValueError(
                f"data set {dataset.name} has a {kind} of {sum(sizes.values())} numbers; robot {one.name!r} has "
                f"{total(parts)}: choose its own robot with --embodiment"
            )
        for name, size in sizes.items():
            trained = known.get(kind, {}).get(name, {}).get("shape", [size])[0]
            if trained != size:
                raise ValueError(
                    f"data set {dataset.name} has {kind} {name!r} of {size} numbers; {base.directory.name} was trained "
                    f"for {one.tag} with {trained}: train it as a new robot, --embodiment new_embodiment"
                )
