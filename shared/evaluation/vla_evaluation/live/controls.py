"""What people want of a running episode, and how its loop waits for it: pause, speed, who drives, which words.

One thread writes (`tell`, with a command), the simulator's reads. A command is a JSON object with the key "do".
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vla_contract.protocol.errors import shorten
from vla_contract.protocol.parts import Part, total
from vla_evaluation.live.opening import INSTRUCTION_CHARS
from vla_evaluation.recording.tape import moves

HELD_S = 0.5  # a person's action holds so long: with a connection that breaks off, the arm stops
SETTLE_STEPS = 10  # what a person lets go of falls; then time stands still until the next action
MAX_SPEED = 100.0
LOOK_S = 0.05  # between two looks at what nobody tells: that a person's action is over


class Left(Exception):
    """The episode that runs is left: `do` says for what (reset, finish or close)."""

    def __init__(self, do: str):
        super().__init__(do)
        self.do = do


class Controls:
    """What was last asked for. `driver` is "policy" or "person"; speed is times real time, 0: as fast as it goes."""

    def __init__(self, parts: Sequence[Part], driver: str):
        self.parts, self.moving, self.driver = tuple(parts), moves(parts), driver
        self.low = np.array([-np.inf if part.low is None else part.low for part in parts for _ in range(part.size)])
        self.high = np.array([np.inf if part.high is None else part.high for part in parts for _ in range(part.size)])
        self.playing, self.single, self.speed = True, 0, 1.0
        self.instruction: str | None = None
        self.wanted = False  # somebody waits for a picture
        self.start: Mapping[str, Any] | None = None  # of the next episode, in `Opening.starting`'s words
        self.jobs: deque[Mapping[str, Any]] = deque(maxlen=8)
        self.changed = threading.Condition()
        self._action, self._until, self._settle = np.zeros(total(parts)), 0.0, 0
        self._leave = ""

    def tell(self, command: Mapping[str, Any]) -> None:
        """Takes a command that `checked` has let through."""
        with self.changed:
            getattr(self, f"_do_{command['do']}")(command)
            self.changed.notify_all()

    def _do_play(self, command: Mapping) -> None:
        self.playing = True

    def _do_pause(self, command: Mapping) -> None:
        self.playing, self.single = False, 0

    def _do_step(self, command: Mapping) -> None:
        self.playing, self.single = False, self.single + 1

    def _do_speed(self, command: Mapping) -> None:
        self.speed = float(command["speed"])

    def _do_drive(self, command: Mapping) -> None:
        self.driver, self.playing = command["driver"], True

    def _do_instruct(self, command: Mapping) -> None:
        self.instruction = command["instruction"].strip() or None

    def _do_act(self, command: Mapping) -> None:
        self._action = np.clip(np.asarray(command["action"], float), self.low, self.high)
        self._until, self._settle = time.monotonic() + HELD_S, SETTLE_STEPS

    def _do_look(self, command: Mapping) -> None:
        self.wanted = True

    def _do_reset(self, command: Mapping) -> None:
        self._leave, self.start = "reset", command["start"]

    def _do_finish(self, command: Mapping) -> None:
        self._leave = "finish"

    def _do_close(self, command: Mapping) -> None:
        self._leave = "close"

    def _do_film(self, command: Mapping) -> None:
        self.jobs.append(command)

    _do_keep = _do_film

    # --- the simulator's side -----------------------------------------------------------------------------

    def begin(self) -> None:
        """Forgets what belonged to the episode before."""
        with self.changed:
            self._leave, self.single, self._settle, self._until = "", 0, 0, 0.0
            self._action = np.zeros_like(self._action)
            self.jobs.clear()

    def left(self) -> None:
        """Raises Left where the episode is to be left."""
        if self._leave:
            raise Left(self._leave)

    def wait(self, ready: Callable[[], bool], idle: Callable[[], None], until: float = math.inf) -> None:
        """Waits until `ready`, or for a moment of time.monotonic(), calling `idle` now and again. Raises Left."""
        while True:
            idle()
            with self.changed:
                self.left()
                now = time.monotonic()
                if now >= until or ready():
                    return
                self.changed.wait(min(LOOK_S, until - now))

    def goes(self) -> bool:
        """Returns whether the next step may be done, and counts it where it was asked for alone."""
        if self.single:
            self.single -= 1
            return True
        return self.playing and (self.driver == "policy" or self.is_moving())

    def is_moving(self) -> bool:
        """Returns whether a person's action holds, or what it moved may still be falling."""
        return time.monotonic() < self._until or self._settle > 0

    def action(self) -> np.ndarray:
        """Returns the person's action for this step: float32 [m]; movements end with the time that it holds for."""
        if time.monotonic() < self._until:
            return self._action.astype(np.float32)
        self._settle = max(0, self._settle - 1)
        return np.where(self.moving, 0.0, self._action).astype(np.float32)


NUMBERS = {"speed": (0.0, MAX_SPEED)}
PLAIN = ("play", "pause", "step", "finish", "close")
DRIVERS = ("policy", "person")


def checked(command: Mapping[str, Any], parts: Sequence[Part], has_policy: bool) -> dict[str, Any]:
    """Returns a command with the keys that it may have. ValueError, with what was expected, for any other."""
    do = command.get("do")
    if do in PLAIN:
        return {"do": do}
    if do == "speed":
        low, high = NUMBERS["speed"]
        return {"do": do, "speed": _number("speed", command.get("speed"), low, high)}
    if do == "drive" and (driver := command.get("driver")) in DRIVERS:
        if driver == "policy" and not has_policy:
            raise ValueError("this session has no policy that could drive; open one with a policy")
        return {"do": do, "driver": driver}
    if do == "instruct" and isinstance(text := command.get("instruction"), str):
        if len(text) > INSTRUCTION_CHARS:
            raise ValueError(f"the instruction has {len(text)} characters; expected {INSTRUCTION_CHARS} at most")
        return {"do": do, "instruction": text}
    if do == "act":
        return {"do": do, "action": _action(command.get("action"), total(parts))}
    if do == "reset":
        return {"do": do, "start": command.get("start")}  # `Opening.starting` judges it
    known = ", ".join((*PLAIN, "speed", "drive", "instruct", "act", "reset"))
    raise ValueError(f"command {shorten(command, 120)} is not known, or lacks what it needs; known: {known}")


def _action(values: Any, size: int) -> list[float]:
    if not isinstance(values, list) or len(values) != size:
        raise ValueError(f"action is {shorten(values)}; expected {size} numbers")
    return [_number("action", value, -1e6, 1e6) for value in values]


def _number(name: str, value: Any, low: float, high: float) -> float:
    if type(value) not in (int, float) or not low <= value <= high:
        raise ValueError(f"{name} is {shorten(value, 40)}; expected a number from {low:g} to {high:g}")
    return float(value)
