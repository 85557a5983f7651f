"""What GR00T N1.5 needs of a data set beside what every reader does, and which embodiments it fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from services.gr00t.checkpoint.embodiment import Embodiment, embodiment, shipped
from vla_datasets import hdf5, metadata
from vla_datasets.checks import Findings
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset

WIDTHS = {"state": 64, "action": 32}  # the network's numbers, at most
ANNOTATION = "annotation."
WRITE = "GR00T's loader needs it: it names the parts of state and action, the videos and the instruction"


def check(found: Findings, wanted: str | None) -> None:
    """Adds what GR00T lacks in a data set; `wanted` is an embodiment that it must fit."""
    if hdf5.files(found.directory):
        found.add(".", "LIBERO's HDF5 files; GR00T needs LeRobot's layout: ./lab dataset NAME --format lerobot")
        return
    try:
        dataset = LeRobotDataset(found.directory)
    except DatasetError:
        return  # told already
    if dataset.modality is None:
        found.add(metadata.MODALITY, f"is missing; {WRITE}")
        return
    if not dataset.modality.get("annotation"):
        text = (
            "names no annotation; `./lab finetune` takes the instruction from task_index, upstream's loader needs one"
        )
        found.note(metadata.MODALITY, text)
    for name, part in (dataset.modality.get("video") or {}).items():
        _video(found, dataset, name, (part or {}).get("original_key") or name)
    for text in misfits(dataset, embodiment(wanted)) if wanted else ():
        found.add(metadata.MODALITY, f"embodiment {wanted}: {text}")
    if not wanted and not fitting(dataset):
        text = f"fits none of the embodiments here ({', '.join(shipped())})"
        found.note(metadata.MODALITY, f"{text}; a new robot's is a JSON file, see docs/gr00t.md")


def _video(found: Findings, dataset: LeRobotDataset, name: str, key: str) -> None:
    feature = dataset.features.get(key, {})
    old = "channel" in (feature.get("names") or ()) and "video.fps" in feature.get("video_info", {})
    new = {"video.channels", "video.fps"} <= feature.get("info", {}).keys()
    if feature and not (old or new):
        text = f"feature {key}: GR00T's loader needs names with 'channel' and video_info, or info, with video.fps"
        found.add(metadata.INFO, text)


def misfits(dataset: LeRobotDataset, robot: Embodiment) -> Iterator[str]:
    """Yields what keeps a data set from being this robot's, in words."""
    modality: dict[str, Any] = dataset.modality or {}
    wanted = {"video": robot.cameras.values(), "state": robot.state, "action": robot.action}
    for kind, names in wanted.items():
        there = modality.get(kind) or {}
        missing = [name for name in names if name not in there]
        if missing:
            yield f"{kind} {', '.join(missing)} missing; modality.json has {', '.join(there) or 'none'}"
        elif kind in WIDTHS:
            yield from _too_wide(kind, [(names[name].normalization, there[name]) for name in names])
    language, there = robot.language.removeprefix(ANNOTATION), modality.get("annotation") or {}
    if there and language not in there:
        yield f"annotation {language} missing; modality.json has {', '.join(there)}"


def _too_wide(kind: str, parts: list[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    ends = [(normalization, part.get("start"), part.get("end")) for normalization, part in parts]
    if not all(type(start) is int and type(end) is int for _, start, end in ends):
        yield f"{kind} has a part whose start or end is not a whole number"
        return
    sizes = [(2 if normalization == "sin_cos" else 1) * (end - start) for normalization, start, end in ends]
    if sum(sizes) > WIDTHS[kind]:
        yield f"{kind} has {sum(sizes)} numbers; the network takes {WIDTHS[kind]}"


def fitting(dataset: LeRobotDataset) -> list[str]:
    """Returns the shipped embodiments that a data set fits."""
    return [name for name in shipped() if not any(misfits(dataset, embodiment(name)))]
