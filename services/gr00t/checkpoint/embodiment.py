"""Embodiments as data: how a robot's cameras, state and action are named, normalised, and given to the network.

One JSON file each. Those of published checkpoints lie in embodiments/, with the source of every name; a fine-tuned
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
OWN = "embodiment.json"  # in a checkpoint's folder
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
    """What is done to a part of the state, and undone to a part of the action.

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
    """One robot as a checkpoint knows it.

    tag        upstream's embodiment tag: whose statistics, encoders and decoder of the checkpoint are used
    cameras    the contract's camera name -> the training data's, in the order the model sees them; pictures are to be
               sent as the training data had them (LIBERO: 256 × 256, both turned by 180°, not cropped)
    language   upstream's key of the instruction
    state, action    the training data's names, in the contract's order, and how they are transformed
    denoising_steps  Euler steps of the action's flow, as upstream serves this embodiment
    state_parts, action_parts    what the numbers are; empty: known is only that they are as the training data has them
    profile    the evaluation protocol that its checkpoints are made for; None: none is known
    source     where all this is written
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
            raise ValueError(f"cameras name one picture twice: {', '.join(self.cameras.values())}")
        if odd := [name for name, one in self.action.items() if one.normalization == "sin_cos"]:
            raise ValueError(f"action {odd[0]!r} has normalization 'sin_cos', which cannot be undone; it is for states")
        if type(self.denoising_steps) is not int or self.denoising_steps < 1:
            raise ValueError(f"denoising_steps is {self.denoising_steps!r}; expected a whole number, 1 or more")

    @property
    def projector(self) -> int:
        """Whose encoders and decoder of the network's 32."""
        return PROJECTORS[self.tag]


def read(path: Path) -> Embodiment:
    """Returns the embodiment that a JSON file describes, called as the file is unless it says so itself.

    Raises CheckpointError naming the file and what is wrong with it.
    """
    given = read_json(path)
    known = [one.name for one in fields(Embodiment)]
    for name in given:
        if name not in known:
            raise CheckpointError(f"{path} has the unknown field {name!r}{did_you_mean(name, known)}")
    try:
        made = {kind: _transforms(given[kind]) for kind in ("state", "action")}
        made |= {kind: tuple(Part(**part) for part in given.get(kind, ())) for kind in PARTS}
        return Embodiment(**{"name": path.stem, **given, **made})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} describes no embodiment: {error}") from error


def shipped() -> tuple[str, ...]:
    """Returns the names of the embodiments that come with the lab."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.json")))


def embodiment(name: str) -> Embodiment:
    """Returns a shipped embodiment, or that of a JSON file's path.

    Raises ValueError, with the nearest name, when there is none.
    """
    if name in shipped():
        return read(SHIPPED / f"{name}.json")
    if name.endswith(".json") and Path(name).expanduser().is_file():
        return read(Path(name).expanduser())
    raise ValueError(f"embodiment {name!r} not found{did_you_mean(name, shipped())}; or give the path of a JSON file")


def write(path: Path, one: Embodiment) -> None:
    """Writes an embodiment as `read` takes it."""
    value: dict[str, Any] = {item.name: getattr(one, item.name) for item in fields(one)}
    value |= {kind: {name: vars(part) for name, part in getattr(one, kind).items()} for kind in ("state", "action")}
    value |= {kind: [vars(part) for part in getattr(one, kind)] for kind in PARTS}
    path.write_text(json.dumps(value | {"cameras": dict(one.cameras)}, indent=1) + "\n", encoding="utf-8")


def usable(metadata: Mapping[str, Any]) -> list[str]:
    """Returns the shipped embodiments whose tag, cameras, state and action a checkpoint's metadata.json has."""
    return [name for name in shipped() if _fits(embodiment(name), metadata)]


def _fits(robot: Embodiment, metadata: Mapping[str, Any]) -> bool:
    modalities = metadata.get(robot.tag, {}).get("modalities", {})
    needed = {"video": robot.cameras.values(), "state": robot.state, "action": robot.action}
    return all(set(names) <= set(modalities.get(kind, ())) for kind, names in needed.items())


def _transforms(given: Mapping[str, Any]) -> dict[str, Transform]:
    return {name: Transform(**part) for name, part in given.items()}
