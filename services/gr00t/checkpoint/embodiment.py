"""Embodiments as data: names, normalisation and network input of a robot's cameras, state and action.

One JSON file each. Those of published checkpoints are in embodiments/, with the source of every name; a fine-tuned
checkpoint brings its own, embodiment.json, and any other file can be named by its path. A file looks like this:

    {"source": "…", "tag": "new_embodiment",
     "cameras": {"agentview": "image"},                         the contract's name -> the training data's
     "language": "annotation.human.task_description",
     "state":  {"arm": {"normalization": "min_max"}, …},        in the order of the contract's state vector
     "action": {"arm": {"normalization": "min_max"}, …},        in the order of the contract's actions
     "denoising_steps": 4,
     "profile": "groot-n1.5",                                   how it is evaluated, where a benchmark says that
     "state_parts": [{"name": "arm", "size": 6, "unit": "rad", "convention": "joints"}, …],    where it is known
     "action_parts": […]}                                                       what the numbers are, for `/v1/info`

Sizes and statistics are the checkpoint's own (experiment_cfg/metadata.json).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vla_contract.protocol.errors import did_you_mean
from vla_contract.protocol.parts import Part
from vla_modelkit.checkpoint import CheckpointError, read_json

PARTS = ("state_parts", "action_parts")
EMBODIMENT_FILE = "embodiment.json"  # in a checkpoint's directory
SHIPPED = Path(__file__).with_name("embodiments")
# Upstream's embodiment tags and whose encoders and decoder they mean (gr00t/data/embodiment_tags.py at 4af2b622).
PROJECTORS: Mapping[str, int] = MappingProxyType(
    {"new_embodiment": 31, "oxe_droid": 17, "agibot_genie1": 26, "gr1": 24}
)
NORMALIZATIONS = ("none", "min_max", "mean_std", "q99", "binary", "sin_cos")
EULER = tuple(f"euler_angles_{order}" for order in ("rpy", "ryp", "pry", "pyr", "yrp", "ypr"))
ROTATIONS = ("axis_angle", "quaternion", "rotation_6d", *EULER)  # quaternion: w, x, y, z


@dataclass(frozen=True)
class Transform:
    """The transform of a part of the state, or the inverse transform of a part of the action.

    normalization  one of NORMALIZATIONS; sin_cos is for states only and doubles their size
    rotation       the representation the network was trained with, one of ROTATIONS; empty: as in the data
    """

    normalization: str = "none"
    rotation: str = ""

    def __post_init__(self):
        if self.normalization not in NORMALIZATIONS:
            raise ValueError(
                f"normalization {self.normalization!r} not found{did_you_mean(self.normalization, NORMALIZATIONS)}"
            )
        if self.rotation and self.rotation not in ROTATIONS:
            raise ValueError(f"rotation {self.rotation!r} not found{did_you_mean(self.rotation, ROTATIONS)}")


@dataclass(frozen=True)
class Embodiment:
    """A robot as a checkpoint was trained for it; the module's docstring explains the fields.

    tag: upstream's embodiment tag: whose statistics, encoders and decoder of the checkpoint are used. Images are to be
    sent as the training data had them (LIBERO: 256 × 256, both turned by 180°, not cropped).
    """

    name: str
    tag: str
    cameras: Mapping[str, str]
    language: str
    state: Mapping[str, Transform]
    action: Mapping[str, Transform]
    denoising_steps: int = 4
    state_parts: tuple[Part, ...] = ()
    action_parts: tuple[Part, ...] = ()
    profile: str | None = None
    source: str = field(default="", compare=False)

    def __post_init__(self):
        if self.tag not in PROJECTORS:
            raise ValueError(f"tag {self.tag!r} not found{did_you_mean(self.tag, PROJECTORS)}")
        if not self.cameras or not self.action:
            raise ValueError("cameras and action must not be empty")
        if len(set(self.cameras.values())) != len(self.cameras):
            raise ValueError(f"cameras name the same image twice: {', '.join(self.cameras.values())}")
        if odd := [name for name, transform in self.action.items() if transform.normalization == "sin_cos"]:
            raise ValueError(f"action {odd[0]!r} has normalization 'sin_cos', which cannot be undone; it is for states")
        if type(self.denoising_steps) is not int or self.denoising_steps < 1:
            raise ValueError(f"denoising_steps must be an integer of 1 or more, got {self.denoising_steps!r}")

    @property
    def projector(self) -> int:
        """Index of its encoders and decoder among the network's 32."""
        return PROJECTORS[self.tag]


def read(path: Path) -> Embodiment:
    """Read an embodiment from a JSON file; its default name is the file's.

    Raises CheckpointError naming the file and the error.
    """
    data = read_json(path)
    names = [attribute.name for attribute in fields(Embodiment)]
    for name in data:
        if name not in names:
            raise CheckpointError(f"{path} has the unknown field {name!r}{did_you_mean(name, names)}")
    try:
        parsed = {kind: {name: Transform(**part) for name, part in data[kind].items()} for kind in ("state", "action")}
        parsed |= {kind: tuple(Part(**part) for part in data.get(kind, ())) for kind in PARTS}
        return Embodiment(**{"name": path.stem, **data, **parsed})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} is not a valid embodiment: {error}") from error


def shipped() -> tuple[str, ...]:
    """Return the names of the lab's embodiments."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.json")))


def embodiment(name: str) -> Embodiment:
    """Return a shipped embodiment, or that of a JSON file's path.

    Raises ValueError, with the closest name, if it does not exist.
    """
    if name in shipped():
        return read(SHIPPED / f"{name}.json")
    if name.endswith(".json") and Path(name).expanduser().is_file():
        return read(Path(name).expanduser())
    raise ValueError(f"embodiment {name!r} not found{did_you_mean(name, shipped())}; or give the path of a JSON file")


def write(path: Path, robot: Embodiment) -> None:
    """Write an embodiment in the format of `read`."""
    value: dict[str, Any] = {item.name: getattr(robot, item.name) for item in fields(robot)}
    value |= {kind: {name: vars(part) for name, part in getattr(robot, kind).items()} for kind in ("state", "action")}
    value |= {kind: [vars(part) for part in getattr(robot, kind)] for kind in PARTS}
    path.write_text(json.dumps(value | {"cameras": dict(robot.cameras)}, indent=1) + "\n", encoding="utf-8")


def usable(metadata: Mapping[str, Any]) -> list[str]:
    """Return the shipped embodiments whose tag, cameras, state and action a checkpoint's metadata.json has."""
    fitting = []
    for robot in map(embodiment, shipped()):
        modalities = metadata.get(robot.tag, {}).get("modalities", {})
        needed = {"video": robot.cameras.values(), "state": robot.state, "action": robot.action}
        if all(set(names) <= set(modalities.get(kind, ())) for kind, names in needed.items()):
            fitting.append(robot.name)
    return fitting
