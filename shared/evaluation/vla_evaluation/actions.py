"""Convert a policy's actions to the benchmark's convention, part by part, and check that they are plausible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import zip_longest

import numpy as np

from vla_contract import ActionChunk
from vla_contract.protocol.parts import GRIPPER_CLOSES, GRIPPER_OPENS, Part, total

# Controllers clip at a delta's range; ten times that is an action that was not un-normalised.
OVERSHOOT = 10.0
# The same for a part without a unit, which selects one of two states, such as a gripper.
CHOICE_OVERSHOOT = 1.5


class PolicyFault(Exception):
    """The policy returned an action that must not be executed; a retry would return the same."""


def _meaning(part: Part) -> tuple:
    return part.name, part.size, part.unit, part.convention  # without its range, to which no code clips


# (the policy's part, the benchmark's) → the conversion of numbers, float32 [T, size]
CONVERSIONS: dict[tuple, Callable[[np.ndarray], np.ndarray]] = {
    # openvla, experiments/robot/robot_utils.py: [0, 1] becomes [−1, 1], its sign is taken and inverted
    (_meaning(GRIPPER_OPENS), _meaning(GRIPPER_CLOSES)): lambda opens: -np.sign(2 * np.clip(opens, 0, 1) - 1),
}


def differing(policy_parts: Sequence[Part], benchmark_parts: Sequence[Part], convert: bool = True) -> tuple | None:
    """Return the first pair of parts that does not fit, with None for a missing part; None if all fit.

    Parts fit if they mean the same, or (`convert`) if the policy's can be converted to the benchmark's.
    """
    for pair in zip_longest(policy_parts, benchmark_parts):
        if None in pair:
            return pair
        meanings = _meaning(pair[0]), _meaning(pair[1])
        if meanings[0] != meanings[1] and not (convert and meanings in CONVERSIONS):
            return pair
    return None


class Actions:
    """Converts a policy's chunks to actions of `executed`. The parts must fit each other: see `differing`."""

    def __init__(self, name: str, answered: Sequence[Part], executed: Sequence[Part]):
        self.name, self.answered, self.executed = name, tuple(answered), tuple(executed)
        self.size = total(executed)

    @cached_property
    def limits(self) -> np.ndarray:
        """The largest plausible magnitude, float32 [n]: any finite one where no range is known, and where the
        conversion takes the sign, which clips.
        """
        limits: list[float] = []
        for part, target in zip(self.answered, self.executed, strict=True):
            limit = float(np.finfo(np.float32).max)
            if part.low is not None and part.high is not None and (_meaning(part), _meaning(target)) not in CONVERSIONS:
                limit = (CHOICE_OVERSHOOT if part.unit == "1" else OVERSHOOT) * max(abs(part.low), abs(part.high))
            limits += [limit] * part.size
        return np.array(limits, dtype=np.float32)

    def read(self, chunk: ActionChunk, count: int, skip: int = 0) -> tuple[np.ndarray, PolicyFault | None]:
        """Return the chunk's first `count` actions without the first `skip`, float32 [T, n], up to the first that is
        not plausible, and the fault of that one.
        """
        actions = np.asarray(chunk.actions, dtype=np.float32)
        if actions.ndim != 2 or actions.shape[1] != self.size or len(actions) == 0:
            expected = f"expected [T, {self.size}] with T ≥ 1"
            message = f"policy {self.name!r} returned actions of shape {actions.shape}; {expected}"
            return np.empty((0, self.size), np.float32), PolicyFault(message)
        fault, actions = None, actions[skip:count]
        bad = np.argwhere(~(np.abs(actions) <= self.limits))  # not >, so NaN is bad too
        if len(bad):
            step, dimension = bad[0]
            fault, actions = self._fault(actions[step, dimension], skip + step, dimension), actions[:step]
        begin = 0
        for source, target in zip(self.answered, self.executed, strict=True):
            convert = CONVERSIONS.get((_meaning(source), _meaning(target)))
            if convert is not None:
                actions = actions.copy()
                actions[:, begin : begin + target.size] = convert(actions[:, begin : begin + target.size])
            begin += target.size
        return actions, fault

    def _fault(self, value: float, step: int, dimension: int) -> PolicyFault:
        message = f"policy {self.name!r} returned {value:.3g} in action {step}, dimension {dimension}"
        if not np.isfinite(value):
            return PolicyFault(message)
        part = [part for part in self.answered for _ in range(part.size)][dimension]
        unit = "" if part.unit == "1" else f", 1.0 is {part.unit}"
        return PolicyFault(
            f"{message}; expected at most {self.limits[dimension]:g} ({part.name}{unit}). Check that the actions are "
            "un-normalised with the right key (--unnorm-key)"
        )
