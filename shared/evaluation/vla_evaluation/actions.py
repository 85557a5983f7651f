"""From a policy's actions to the benchmark's: part by part, as they are or from one convention of it to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from vla_contract import ActionChunk
from vla_contract.protocol.parts import GRIPPER_CLOSES, GRIPPER_OPENS, Part, total

OVERSHOOT = 10.0  # controllers clip at a delta's range; ten times that is an action that was not un-normalised
CHOICE_OVERSHOOT = 1.5  # of a part without a unit, which says one of two things


class PolicyFault(Exception):
    """The policy answered something that must not be executed; asking again would give the same."""


def _turn_gripper(opens: np.ndarray) -> np.ndarray:
    """[0, 1] becomes [−1, 1], its sign, and is turned round (openvla, experiments/robot/robot_utils.py)."""
    return -np.sign(2 * np.clip(opens, 0, 1) - 1)


def _meaning(part: Part) -> tuple:
    return part.name, part.size, part.unit, part.convention  # without its range: nobody clips to it


# (what a policy says, what a benchmark executes) → the numbers float32 [T, size] of one as those of the other
CONVERSIONS: dict[tuple, Callable[[np.ndarray], np.ndarray]] = {
    (_meaning(GRIPPER_OPENS), _meaning(GRIPPER_CLOSES)): _turn_gripper,
}


def fits(theirs: Part, ours: Part) -> bool:
    """Returns whether a policy's part can be executed as the benchmark's."""
    return _meaning(theirs) == _meaning(ours) or (_meaning(theirs), _meaning(ours)) in CONVERSIONS


def differing(theirs: Sequence[Part], ours: Sequence[Part]) -> tuple[Part | None, Part | None] | None:
    """Returns the first pair of parts that does not fit, None for one that is not there; None where all fit."""
    return _first(theirs, ours, fits)


def unlike(theirs: Sequence[Part], ours: Sequence[Part]) -> tuple[Part | None, Part | None] | None:
    """Returns the first pair of parts that do not mean the same in the same convention, as `differing`."""
    return _first(theirs, ours, lambda one, other: _meaning(one) == _meaning(other))


def _first(theirs: Sequence[Part], ours: Sequence[Part], alike: Callable[[Part, Part], bool]):
    for number in range(max(len(theirs), len(ours))):
        pair = tuple(parts[number] if number < len(parts) else None for parts in (theirs, ours))
        if None in pair or not alike(*pair):
            return pair
    return None


class Actions:
    """Reads a policy's chunks as actions of `executed`. The parts must fit each other: see `differing`."""

    def __init__(self, name: str, answered: Sequence[Part], executed: Sequence[Part]):
        self.name, self.answered, self.executed = name, tuple(answered), tuple(executed)
        self.size = total(executed)

    @cached_property
    def limits(self) -> np.ndarray:
        """The largest magnitude that can be meant, float32 [n]."""
        pairs = zip(self.answered, self.executed, strict=True)
        return np.array([_limit(*pair) for pair in pairs for _ in range(pair[0].size)], dtype=np.float32)

    def read(self, chunk: ActionChunk, count: int, skip: int = 0) -> tuple[np.ndarray, PolicyFault | None]:
        """Returns the chunk's first `count` actions without `skip` at its beginning, float32 [T, n], up to the first
        that cannot be meant, with what is wrong about it.
        """
        actions = np.asarray(chunk.actions, dtype=np.float32)
        if actions.ndim != 2 or actions.shape[1] != self.size or len(actions) == 0:
            wanted = f"expected [T, {self.size}] with T ≥ 1"
            words = f"policy {self.name!r} answered actions of shape {actions.shape}; {wanted}"
            return np.empty((0, self.size), np.float32), PolicyFault(words)
        fault, actions = None, actions[skip:count]
        bad = np.argwhere(~(np.abs(actions) <= self.limits))  # so that NaN is bad, too
        if len(bad):
            step, dimension = bad[0]
            fault, actions = self._fault(actions[step, dimension], skip + step, dimension), actions[:step]
        return self._converted(actions), fault

    def _converted(self, actions: np.ndarray) -> np.ndarray:
        begin = 0
        for theirs, ours in zip(self.answered, self.executed, strict=True):
            convert = CONVERSIONS.get((_meaning(theirs), _meaning(ours)))
            if convert is not None:
                actions = actions.copy()
                actions[:, begin : begin + ours.size] = convert(actions[:, begin : begin + ours.size])
            begin += ours.size
        return actions

    def _fault(self, value: float, step: int, dimension: int) -> PolicyFault:
        words = f"policy {self.name!r} answered {value:.3g} in action {step}, dimension {dimension}"
        if not np.isfinite(value):
            return PolicyFault(words)
        part = [part for part in self.answered for _ in range(part.size)][dimension]
        unit = "" if part.unit == "1" else f", 1.0 is {part.unit}"
        return PolicyFault(
            f"{words}; at most {self.limits[dimension]:g} makes sense ({part.name}{unit}): are the actions "
            "un-normalised with the right key?"
        )


def _limit(part: Part, ours: Part) -> float:
    """Returns the largest magnitude of a part's numbers that can be meant: all finite ones where no range is known, and
    where the conversion takes the sign, which is to clip.
    """
    if part.low is None or part.high is None or (_meaning(part), _meaning(ours)) in CONVERSIONS:
        return float(np.finfo(np.float32).max)
    return (CHOICE_OVERSHOOT if part.unit == "1" else OVERSHOOT) * max(abs(part.low), abs(part.high))
