"""`PolicyInfo`: a policy's description, returned by `GET /v1/info` as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from vla_contract.protocol.parts import Part, total


@dataclass(frozen=True)
class Checkpoint:
    """The weights: a repository on a model hub or a directory's name, its revision, and their sha256."""

    repo: str
    revision: str
    sha256: str | None = None


@dataclass(frozen=True)
class PolicyInfo:
    """Conventions as data, compared by the evaluator before the first episode.

    Raises ValueError naming an invalid field.
    """

    name: str
    action: tuple[Part, ...]  # an action is their numbers concatenated; never empty
    state: tuple[Part, ...] = ()  # of the required state; empty: none
    checkpoint: Checkpoint | None = None
    quantization: str = "none"  # of the weights: "none", "bf16", "int4" …
    device: str = "cpu"
    cameras: tuple[str, ...] = ()  # required images, in order, for example ("agentview",)
    image_hw: tuple[int, int] | None = None  # the only accepted image size; None: any
    needs_privileged: bool = False
    horizon: int = 1  # maximum actions in a chunk
    unnorm_keys: tuple[str, ...] = ()  # empty: none is accepted
    suites: tuple[str, ...] = ()  # suites of the checkpoint; empty: any
    max_batch: int = 1
    stateful: bool = False  # keeps state per session; an unknown session at step > 0 is answered with 409
    profile: str | None = None  # the evaluation protocol it was trained for; None: unspecified
    lock_hash: str | None = None  # sha256 of the requirements.lock it runs from
    details: Mapping[str, str] = field(default_factory=dict)  # for example {"attention": "sdpa"}

    def __post_init__(self) -> None:
        for name in ("cameras", "unnorm_keys", "suites"):
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(item, str) and item for item in value):
                raise ValueError(f"PolicyInfo.{name} is {value!r}; expected a tuple of names")
            object.__setattr__(self, name, tuple(value))
        for name in ("action", "state"):
            value = getattr(self, name)
            if not isinstance(value, (tuple, list)) or not all(isinstance(part, Part) for part in value):
                raise ValueError(f"PolicyInfo.{name} is {value!r}; expected a tuple of Part")
            object.__setattr__(self, name, tuple(value))
        if not self.action:
            raise ValueError("PolicyInfo.action is empty; expected the parts of an action")
        if self.image_hw is not None:
            object.__setattr__(self, "image_hw", tuple(self.image_hw))
            if len(self.image_hw) != 2 or not all(type(side) is int and side > 0 for side in self.image_hw):
                raise ValueError(f"image_hw is {self.image_hw!r}; expected (height, width) in pixels or None")
        for name in ("name", "quantization", "device"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"PolicyInfo.{name} is {getattr(self, name)!r}; expected a text")
        for name in ("needs_privileged", "stateful"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"PolicyInfo.{name} is {getattr(self, name)!r}; expected True or False")
        for name in ("horizon", "max_batch"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(f"PolicyInfo.{name} is {getattr(self, name)!r}; expected an int >= 1")
        if self.profile is not None and (not isinstance(self.profile, str) or not self.profile):
            raise ValueError(f"PolicyInfo.profile is {self.profile!r}; expected a profile's name or None")

    @property
    def needs_state(self) -> bool:
        """Whether it needs the robot's state with every observation."""
        return bool(self.state)

    @cached_property
    def action_size(self) -> int:
        """How many numbers an action has."""
        return total(self.action)

    @cached_property
    def state_size(self) -> int:
        """How many numbers the state has that it needs; 0 where it needs none."""
        return total(self.state)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form that `from_dict` reads."""
        return {**asdict(self), "details": dict(self.details)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "PolicyInfo":
        """Return the info of a server; unknown fields of a newer server are ignored."""
        values = _known(cls, data)
        if values.get("checkpoint") is not None:
            values["checkpoint"] = Checkpoint(**_known(Checkpoint, values["checkpoint"]))
        for name in {"action", "state"} & values.keys():
            values[name] = tuple(Part(**_known(Part, part)) for part in values[name])
        return cls(**values)


def _known(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: data[field.name] for field in fields(kind) if field.name in data}
