"""What all episodes of a run share: told to every worker, and the greater part of the run's identity."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vla_contract import PolicyInfo
from vla_contract.protocol.parts import Part
from vla_evaluation import profiles
from vla_evaluation.chunks import Chunking
from vla_evaluation.profiles import EpisodeProtocol

LATER = ("ensemble", "ensemble_weight", "realtime")  # told where they are set, so that other runs' identities stay


@dataclass(frozen=True)
class RunSpec:
    """`cameras` are sent with every observation. `execute`, `ensemble`, `ensemble_weight` and `realtime` say how chunks
    are executed (`chunking`). `action` and `control_hz` are the benchmark's, `profile` is the protocol's name.
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

    @property
    def chunking(self) -> Chunking:
        """How chunks are executed."""
        return Chunking(self.execute, self.ensemble, self.ensemble_weight, self.realtime)

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON types, as a store gives it back: lists for tuples."""
        told = {name: value for name, value in asdict(self).items() if name not in LATER or value is not None}
        drawn = {name: value for name, value in told["protocol"].items() if name not in profiles.LATER or value}
        return json.loads(json.dumps({**told, "protocol": drawn, "policy": self.policy.to_dict()}))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunSpec:
        """Returns what `to_json` has told; anything beside it is left out."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name not in LATER or name in data}
        protocol = dict(known["protocol"])
        protocol["wait_action"] = tuple(protocol["wait_action"])
        known["protocol"] = EpisodeProtocol(**protocol)
        known["action"] = tuple(Part(**part) for part in known["action"])
        known["policy"] = PolicyInfo.from_dict(known["policy"])
        return cls(**{**known, "cameras": tuple(known["cameras"])})
