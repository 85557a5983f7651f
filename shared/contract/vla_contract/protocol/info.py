"""What a policy says about itself: `PolicyInfo`, answered by `GET /v1/info` as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from vla_contract.protocol.errors import did_you_mean

# convention -> what the seven numbers mean
ACTION_CONVENTIONS = {
    "libero": "executed as is: position and rotation deltas in the controller's [-1, 1], gripper -1 open … +1 close",
    "openvla": "as un-normalised by OpenVLA: deltas in the controller's [-1, 1], gripper in [0, 1], 1 = open",
    "embodiment": "in the units of another robot's data, which the policy's details name; not for LIBERO",
}


@dataclass(frozen=True)
class Checkpoint:
    """Which weights: a repository on a model hub or a folder's name, its revision, and the weights' sha256."""

    repo: str
    revision: str
    sha256: str | None = None


@dataclass(frozen=True)
class PolicyInfo:
    """Conventions as data, compared by the evaluator before the first episode.

    Raises ValueError naming the field where one does not hold.
    """

    name: str
    checkpoint: Checkpoint | None = None
    quantization: str = "none"  # "none", "bf16", "int4" …: as the weights are held
    device: str = "cpu"
    cameras: tuple[str, ...] = ()  # the pictures it needs, in its order, for example ("agentview",)
    image_hw: tuple[int, int] | None = None  # the only picture size it takes; None: any
    needs_state: bool = False
    needs_privileged: bool = False
    action_convention: str = "libero"
    horizon: int = 1  # the most actions in a chunk it returns
    unnorm_keys: tuple[str, ...] = ()  # empty: none is needed and none is accepted
    suites: tuple[str, ...] = ()  # the suites the checkpoint was made for; empty: any
    max_batch: int = 1
    stateful: bool = False  # keeps state per session; an unknown session at step > 0 is answered with 409
    lock_hash: str | None = None  # sha256 of the requirements.lock it runs from
    details: Mapping[str, str] = field(default_factory=dict)  # for example {"attention": "sdpa"}

    def __post_init__(self):
        for name in ("cameras", "unnorm_keys", "suites"):
            _set_text_tuple(self, name)
        if self.image_hw is not None:
            object.__setattr__(self, "image_hw", tuple(self.image_hw))
            if len(self.image_hw) != 2 or not all(type(side) is int and side > 0 for side in self.image_hw):
                raise ValueError(f"image_hw is {self.image_hw!r}; expected (height, width) in pixels or None")
        for name in ("name", "quantization", "device"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"PolicyInfo.{name} is {getattr(self, name)!r}; expected a text")
        for name in ("needs_state", "needs_privileged", "stateful"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"PolicyInfo.{name} is {getattr(self, name)!r}; expected True or False")
        for name in ("horizon", "max_batch"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(f"PolicyInfo.{name} is {getattr(self, name)!r}; expected an int >= 1")
        if self.action_convention not in ACTION_CONVENTIONS:
            raise ValueError(
                f"action_convention {self.action_convention!r} not found"
                + did_you_mean(self.action_convention, ACTION_CONVENTIONS)
            )

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form that `from_dict` reads."""
        return {**asdict(self), "details": dict(self.details)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "PolicyInfo":
        """Returns the info a server sent; fields of a newer server that are unknown here are left out."""
        known = {name: data[name] for name in (f.name for f in fields(cls)) if name in data}
        if known.get("checkpoint") is not None:
            known["checkpoint"] = Checkpoint(**{k: known["checkpoint"].get(k) for k in ("repo", "revision", "sha256")})
        return cls(**known)


def _set_text_tuple(info: PolicyInfo, name: str) -> None:
    value = getattr(info, name)
    if isinstance(value, str) or not all(isinstance(item, str) and item for item in value):
        raise ValueError(f"PolicyInfo.{name} is {value!r}; expected a tuple of names")
    object.__setattr__(info, name, tuple(value))
