"""Execution of action chunks: a number of actions of each, an ensemble of several, or in real time.

A policy that is queried at step t returns actions for steps t, t + 1, … `Chunking` defines when it is queried and how
its actions are combined; `Timeline` stores the chunks of one episode and returns the action of every step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_contract import PolicyInfo
from vla_contract.protocol.parts import Part
from vla_evaluation.actions import PolicyFault

MODES = ("newest", "mean", "exponential")
ACT_WEIGHT = 0.01  # ACT's imitate_episodes.py


@dataclass(frozen=True)
class Chunking:
    """Execution of chunks; every field is part of a run's identity. Raises ValueError for invalid combinations.

    execute   steps between two requests; None: as many as the chunk has actions, with `ensemble` one
    ensemble  the action of a step that is in several chunks: the newest chunk's, the mean, or the mean with weights
              w_i = exp(-m · i), i = 0 for the oldest chunk (ACT, T. Z. Zhao et al., RSS 2023, and its
              imitate_episodes.py); None: a chunk ends where the next begins
    weight    m: above 0 older chunks count more, below 0 newer ones; None: ACT's 0.01 with "exponential"
    realtime  steps per second of a simulation that continues during inference; None: it waits
    """

    execute: int | None = None
    ensemble: str | None = None
    weight: float | None = None
    realtime: float | None = None

    def __post_init__(self):
        if self.execute is not None and self.execute < 1:
            raise ValueError(f"invalid --execute {self.execute}; expected 1 or more")
        if self.ensemble is not None and self.ensemble not in MODES:
            raise ValueError(f"invalid --ensemble {self.ensemble}; expected {', '.join(MODES)}")
        if self.weight is not None and self.ensemble != "exponential":
            raise ValueError(
                f"--ensemble-weight {self.weight:g} requires --ensemble exponential, got {self.ensemble or 'none'}; "
                "remove it"
            )
        if self.weight is not None and not math.isfinite(self.weight):
            raise ValueError(f"invalid --ensemble-weight {self.weight}; expected a finite number, for example 0.01")
        if self.realtime is not None and not 0 < self.realtime < math.inf:
            raise ValueError(f"invalid --realtime {self.realtime}; expected steps per second above 0, for example 20")
        if self.ensemble is not None and self.execute is None:
            object.__setattr__(self, "execute", 1)
        if self.ensemble == "exponential" and self.weight is None:
            object.__setattr__(self, "weight", ACT_WEIGHT)

    @classmethod
    def of(cls, identity: Mapping[str, Any]) -> Chunking:
        """Return the chunking of a run's identity; a run that is older than a setting was executed without it."""
        return cls(*(identity.get(name) for name in ("execute", "ensemble", "ensemble_weight", "realtime")))

    def check(self, info: PolicyInfo) -> None:
        """Raise ValueError if a policy's chunks are too short to overlap."""
        if self.ensemble is not None and info.horizon <= self.execute:
            raise ValueError(
                f"--ensemble {self.ensemble} requires overlapping chunks; policy {info.name!r} returns at most "
                f"{info.horizon} actions and is queried every {self.execute}; "
                + ("remove --ensemble" if info.horizon == 1 else f"use --execute below {info.horizon}")
            )

    @property
    def is_plain(self) -> bool:
        """Whether a chunk ends where the next begins, and the world waits."""
        return self.ensemble is None and self.realtime is None

    @property
    def description(self) -> str:
        """The settings as text; different settings have different texts."""
        if self.is_plain:
            return f"{self.execute} of each" if self.execute else "all of each"
        every = "every step" if self.execute == 1 else f"every {self.execute} steps"
        parts = [f"queried {every if self.execute else 'when a chunk is used up'}"]
        if self.ensemble:
            parts.append(f"ensemble {self.ensemble}" + ("" if self.weight is None else f" (m = {self.weight:g})"))
        if self.realtime:
            parts.append(f"real time at {self.realtime:g} steps/s")
        return ", ".join(parts)


@dataclass(frozen=True)
class Chunk:
    """The rest of an answer: `actions` float32 [T, n] for the steps from `begin` on, and the fault of the action after
    them, None if there is none.
    """

    begin: int
    actions: np.ndarray
    fault: PolicyFault | None

    @property
    def end(self) -> int:
        """The first step after the chunk; the step of a fault is part of it."""
        return self.begin + len(self.actions) + (self.fault is not None)


@dataclass
class Delays:
    """The cost of inference for an episode in real time.

    latencies_s  from each observation to its answer
    held_steps     steps without an action, in which the robot holds still
    overtaken    actions whose step had passed when they arrived
    """

    latencies_s: list[float]
    held_steps: int = 0
    overtaken: int = 0

    def summary(self) -> dict[str, float | int]:
        """Return it as JSON types."""
        ms = [1e3 * latency for latency in self.latencies_s]
        return {
            "held_steps": self.held_steps,
            "overtaken_actions": self.overtaken,
            "latency_ms_mean": round(sum(ms) / len(ms), 3) if ms else 0.0,
            "latency_ms_max": round(max(ms, default=0.0), 3),
        }


class Timeline:
    """The chunks of one episode: `due` tells when to query the policy, `answered` adds a chunk, `action` returns the
    action of a step, `executed` takes the one that was executed.

    In real time, the chunk for the observation of step t arrives round(latency × rate) steps later. Until then earlier
    chunks are executed, else the robot holds still; of the new chunk only actions from its arrival on count. There is
    one request at a time: the next follows `execute` steps after the last, or on its response if that is later; earlier
    if no action is left.

    The action of a robot that holds still is zero where a part is a delta (its name ends so, as in "position delta"),
    elsewhere the last executed number. Before the first action that is `at_rest`, the benchmark's wait action, float32
    [n]; where it has none, zeros.
    """

    def __init__(self, chunking: Chunking, parts: Sequence[Part], at_rest: np.ndarray):
        self.chunking = chunking
        self.delays = None if chunking.realtime is None else Delays([])
        self._chunks: list[Chunk] = []  # in the order of their requests
        self._requested_at = self._arrived = 0  # steps of the last request and of its answer
        self._still = np.array([part.name.endswith("delta") for part in parts for _ in range(part.size)])
        self._last = at_rest if len(at_rest) else np.zeros(len(self._still), np.float32)

    def due(self, step: int) -> bool:
        """Return whether to query the policy at this step."""
        self._chunks = [chunk for chunk in self._chunks if step < chunk.end]
        if step < self._arrived:
            return False
        if not self._covering(step):
            return True
        return (
            not self.chunking.is_plain
            and self.chunking.execute is not None
            and step - self._requested_at >= self.chunking.execute
        )

    def wants(self, left: int) -> int:
        """Return the maximum number of a chunk's actions to execute when `left` steps remain."""
        return min(self.chunking.execute or left, left) if self.chunking.is_plain else left

    def delay(self, latency_s: float) -> int:
        """Return the number of steps that the simulation advanced during that latency."""
        return 0 if self.chunking.realtime is None else round(latency_s * self.chunking.realtime)

    def answered(
        self, step: int, latency_s: float, length: int, actions: np.ndarray, fault: PolicyFault | None
    ) -> None:
        """Add the answer to the observation of `step`. length: of the whole chunk; actions, fault: of `Actions.read`,
        from the first action on that is not overtaken.
        """
        delay = self.delay(latency_s)
        if self.delays is not None:
            self.delays.latencies_s.append(latency_s)
            self.delays.overtaken += min(delay, length)
        self._requested_at, self._arrived = step, step + delay
        self._chunks.append(Chunk(step + delay, actions, fault))

    def action(self, step: int) -> tuple[np.ndarray, PolicyFault | None]:
        """Return the action of this step, float32 [n], and the fault for which it must not be executed, if any."""
        hold = np.where(self._still, np.float32(0), self._last).astype(np.float32)
        chunks = self._covering(step)
        if not chunks:
            assert self.delays is not None  # a simulation that waits always has a chunk
            self.delays.held_steps += 1
            return hold, None
        if self.chunking.ensemble in (None, "newest"):
            chunks = chunks[-1:]
        faults = [chunk.fault for chunk in chunks if step == chunk.begin + len(chunk.actions)]
        if faults:
            return hold, faults[0]
        if len(chunks) == 1:
            return chunks[0].actions[step - chunks[0].begin], None
        powers = -(self.chunking.weight or 0.0) * np.arange(len(chunks))
        weights = np.exp(powers - powers.max())  # so that none is infinite
        actions = np.asarray([chunk.actions[step - chunk.begin] for chunk in chunks], np.float64)
        return np.average(actions, axis=0, weights=weights).astype(np.float32), None

    def executed(self, action: np.ndarray) -> None:
        self._last = action

    def _covering(self, step: int) -> list[Chunk]:
        return [chunk for chunk in self._chunks if chunk.begin <= step < chunk.end]
