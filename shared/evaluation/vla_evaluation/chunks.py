"""How action chunks are executed: so many actions of each, several averaged, or while the world moves on.

A policy that is asked at step t answers what to do at steps t, t + 1, … `Chunking` says when it is asked and which of
its answers counts; `Timeline` keeps the answers of one episode and says what to execute at every step.
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
    """How chunks are executed; every field is part of a run's identity. Raises ValueError for what makes no sense.

    execute   steps from one question to the next; None: as many as the chunk has actions, with `ensemble` one
    ensemble  what is executed at a step that several chunks speak of: the action of the newest, the mean, or the mean
              with weights w_i = exp(-m · i), i = 0 for the oldest chunk (ACT, T. Z. Zhao et al., RSS 2023, and its
              imitate_episodes.py); None: a chunk ends where the next begins
    weight    m: above 0 older chunks count more, below 0 newer ones; None: ACT's 0.01 with "exponential"
    realtime  steps per second of a world that moves on while the policy thinks; None: it waits
    """

    execute: int | None = None
    ensemble: str | None = None
    weight: float | None = None
    realtime: float | None = None

    def __post_init__(self):
        if self.execute is not None and self.execute < 1:
            raise ValueError(f"--execute {self.execute} makes no sense; expected 1 or more")
        if self.ensemble is not None and self.ensemble not in MODES:
            raise ValueError(f"--ensemble {self.ensemble} is not known; expected {', '.join(MODES)}")
        if self.weight is not None and self.ensemble != "exponential":
            raise ValueError(
                f"--ensemble-weight {self.weight:g} weighs chunks of --ensemble exponential; "
                f"{self.ensemble or 'without it'} has no use for it: leave it out"
            )
        if self.weight is not None and not math.isfinite(self.weight):
            raise ValueError(f"--ensemble-weight {self.weight} makes no sense; expected a finite number, as 0.01")
        if self.realtime is not None and not 0 < self.realtime < math.inf:
            raise ValueError(f"--realtime {self.realtime} makes no sense; expected steps per second above 0, as 20")
        if self.ensemble is not None and self.execute is None:
            object.__setattr__(self, "execute", 1)
        if self.ensemble == "exponential" and self.weight is None:
            object.__setattr__(self, "weight", ACT_WEIGHT)

    @classmethod
    def of(cls, identity: Mapping[str, Any]) -> Chunking:
        """Returns what a run's identity says; one that is older than a setting was executed without it."""
        told = (identity.get(name) for name in ("execute", "ensemble", "ensemble_weight", "realtime"))
        return cls(*told)

    def check(self, info: PolicyInfo) -> None:
        """Raises ValueError where a policy's chunks are too short to overlap."""
        if self.ensemble is not None and info.horizon <= self.execute:
            raise ValueError(
                f"--ensemble {self.ensemble} needs chunks that overlap; policy {info.name!r} answers at most "
                f"{info.horizon} actions and is asked every {self.execute}: "
                + ("leave it out" if info.horizon == 1 else f"give --execute below {info.horizon}")
            )

    @property
    def is_plain(self) -> bool:
        """Whether nothing but `execute` is set: a chunk ends where the next begins, and the world waits."""
        return self.ensemble is None and self.realtime is None

    @property
    def words(self) -> str:
        """What it is, in words from which all of it can be told."""
        every = "" if self.execute is None else "every step" if self.execute == 1 else f"every {self.execute} steps"
        if self.is_plain:
            return f"{self.execute} of each" if self.execute else "all of each"
        parts = [f"asked {every or 'when one is used up'}"]
        if self.ensemble:
            parts.append(f"ensemble {self.ensemble}" + ("" if self.weight is None else f" (m = {self.weight:g})"))
        if self.realtime:
            parts.append(f"real time at {self.realtime:g} steps/s")
        return ", ".join(parts)


@dataclass(frozen=True)
class Chunk:
    """What is left of an answer: `actions` float32 [T, n] for the steps from `begin` on, and what is wrong with the
    action after them, None where there is none.
    """

    begin: int
    actions: np.ndarray
    fault: PolicyFault | None

    @property
    def end(self) -> int:
        """The first step that it does not speak of; it speaks of one that cannot be done, too."""
        return self.begin + len(self.actions) + (self.fault is not None)


@dataclass
class Delays:
    """What thinking cost an episode in real time.

    latencies_s  from each observation to its answer
    held         steps for which there was no action, so that the robot stood still
    overtaken    actions whose step had gone by when they arrived
    """

    latencies_s: list[float]
    held: int = 0
    overtaken: int = 0

    def summary(self) -> dict[str, float | int]:
        """Returns it as JSON types."""
        ms = [1e3 * one for one in self.latencies_s]
        return {
            "held_steps": self.held,
            "overtaken_actions": self.overtaken,
            "latency_ms_mean": round(sum(ms) / len(ms), 3) if ms else 0.0,
            "latency_ms_max": round(max(ms, default=0.0), 3),
        }


class Hold:
    """The action of a robot that stands still: no movement where a part is a delta, elsewhere what was executed last.

    A part is a delta if its name ends so ("position delta"). Before the first action `at_rest` counts, the benchmark's
    wait action, float32 [n]; where it has none, zeros.
    """

    def __init__(self, parts: Sequence[Part], at_rest: np.ndarray):
        self._still = np.array([part.name.endswith("delta") for part in parts for _ in range(part.size)])
        self._last = at_rest if len(at_rest) else np.zeros(len(self._still), np.float32)

    def executed(self, action: np.ndarray) -> None:
        """Notes what was executed."""
        self._last = action

    def action(self) -> np.ndarray:
        """Returns the action, float32 [n]."""
        return np.where(self._still, np.float32(0), self._last).astype(np.float32)


class Timeline:
    """The chunks of one episode: `due` says when to ask, `answered` takes what came, `action` says what to execute.

    In real time the answer to what was seen at step t arrives round(latency × rate) steps later. Until then what
    earlier chunks say is executed, else `hold`; of the new one only actions from the step of its arrival on count. One
    question is under way at a time: the next is asked `execute` steps after the last, or when that is answered if that
    is later; earlier where nothing is left to execute.
    """

    def __init__(self, how: Chunking, hold: Hold):
        self.how, self.hold = how, hold
        self.delays = None if how.realtime is None else Delays([])
        self._chunks: list[Chunk] = []  # in the order of their questions
        self._asked = self._arrived = 0  # steps of the last question and of its answer

    def due(self, step: int) -> bool:
        """Returns whether the policy is to be asked at this step."""
        self._chunks = [one for one in self._chunks if step < one.end]
        if step < self._arrived:
            return False
        if not self._speaking(step):
            return True
        return not self.how.is_plain and self.how.execute is not None and step - self._asked >= self.how.execute

    def wants(self, left: int) -> int:
        """Returns how many of a chunk's actions may be executed, at most, where `left` steps are left."""
        return min(self.how.execute or left, left) if self.how.is_plain else left

    def delay(self, latency_s: float) -> int:
        """Returns how many steps the world has done while the policy thought for so long."""
        return 0 if self.how.realtime is None else round(latency_s * self.how.realtime)

    def answered(
        self, step: int, latency_s: float, length: int, actions: np.ndarray, fault: PolicyFault | None
    ) -> None:
        """Takes the answer to what was seen at `step`. length: of the whole chunk; actions, fault: what `Actions.read`
        gives of it from the first action on that is not overtaken.
        """
        delay = self.delay(latency_s)
        if self.delays is not None:
            self.delays.latencies_s.append(latency_s)
            self.delays.overtaken += min(delay, length)
        self._asked, self._arrived = step, step + delay
        self._chunks.append(Chunk(step + delay, actions, fault))

    def action(self, step: int) -> tuple[np.ndarray, PolicyFault | None]:
        """Returns what to execute at this step, float32 [n]; and why the policy's answer for it must not be, if so."""
        speaking = self._speaking(step)
        if not speaking:
            self.delays.held += 1
            return self.hold.action(), None
        if self.how.ensemble in (None, "newest"):
            speaking = speaking[-1:]
        bad = [one.fault for one in speaking if step == one.begin + len(one.actions)]
        if bad:
            return self.hold.action(), bad[0]
        return self._mean([one.actions[step - one.begin] for one in speaking]), None

    def _speaking(self, step: int) -> list[Chunk]:
        return [one for one in self._chunks if one.begin <= step < one.end]

    def _mean(self, told: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the weighted mean of the actions of several chunks, the oldest first."""
        if len(told) == 1:
            return told[0]
        powers = -(self.how.weight or 0.0) * np.arange(len(told))
        weights = np.exp(powers - powers.max())  # so that none is infinite
        return np.average(np.asarray(told, np.float64), axis=0, weights=weights).astype(np.float32)
