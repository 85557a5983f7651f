"""The part of a run that all its episodes share: sent to every worker, and most of the run's identity."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vla_contract import PolicyInfo
from vla_contract.protocol.parts import Part
from vla_evaluation import profiles
from vla_evaluation.chunks import Chunking
from vla_evaluation.profiles import EpisodeProtocol

# stored only when set, so that older runs keep their identity
LATER = ("ensemble", "ensemble_weight", "realtime", "instructions", "ablation")


@dataclass(frozen=True)
class RunSpec:
    """`instructions` has sentences by the task's index (as text) instead of the tasks' own, used in turn by episode;
    `ablation` is one of `vla_evaluation.inputs.ABLATIONS`.

    `cameras` are sent with every observation; `chunking` consists of `execute`, `ensemble`, `ensemble_weight` and
    `realtime`. `action` and `control_hz` are the benchmark's, `profile` is the protocol's name.
    """

    benchmark: str
    suite: str
    profile: str
    protocol: EpisodeProtocol
    max_steps: int
    action: tuple[Part, ...]
    control_hz: float
    policy: PolicyInfo
    cameras: tuple[str, ...] = ()
    execute: int | None = None
    seed: int = 0
    unnorm_key: str | None = None
    render: str = "auto"
    ensemble: str | None = None
    ensemble_weight: float | None = None
    realtime: float | None = None
    instructions: Mapping[str, Sequence[str]] | None = None
    ablation: str | None = None

    @property
    def chunking(self) -> Chunking:
        return Chunking(self.execute, self.ensemble, self.ensemble_weight, self.realtime)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types: lists for tuples."""
        values = {name: value for name, value in asdict(self).items() if name not in LATER or value is not None}
        protocol = {name: value for name, value in values["protocol"].items() if name not in profiles.LATER or value}
        return json.loads(json.dumps({**values, "protocol": protocol, "policy": self.policy.to_dict()}))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunSpec:
        """Return the spec in an identity, ignoring other keys."""
        values = {name: data[name] for name in cls.__dataclass_fields__ if name not in LATER or name in data}
        protocol = {**values["protocol"], "wait_action": tuple(values["protocol"]["wait_action"])}
        values["protocol"] = EpisodeProtocol(**protocol)
        values["action"] = tuple(Part(**part) for part in values["action"])
        values["policy"] = PolicyInfo.from_dict(values["policy"])
        return cls(**{**values, "cameras": tuple(values["cameras"])})
