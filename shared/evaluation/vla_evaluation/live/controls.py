"""A user's controls of a running episode: pause, speed, driver, instruction.

One thread calls `apply` with a command, the simulator's thread all other methods.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vla_contract.protocol.parts import Part, total
from vla_evaluation.recording.trajectory import movement_mask

# A person's action lasts this long, so the arm stops when the connection is lost.
HOLD_S = 0.5
# Steps after a person's action in which a released object falls; then the simulation waits for the next action.
SETTLE_STEPS = 10
# Between two checks for the end of a person's action, which no command announces.
POLL_S = 0.05


class EpisodeLeft(Exception):
    """The running episode was stopped by the command `do` (reset, finish or close)."""

    def __init__(self, do: str):
        super().__init__(do)
        self.do = do


class Controls:
    """The latest commands.

    driver      "policy" or "person"
    speed       times real time; 0: as fast as possible
    is_watched  a page waits for an image
    start       of the next episode, as `SessionRequest.with_start` takes it
    jobs        videos and demonstrations that were requested of an ended episode
    """

    def __init__(self, parts: Sequence[Part], driver: str):
        self.is_movement, self.driver = movement_mask(parts), driver
        self.low = np.array([-np.inf if part.low is None else part.low for part in parts for _ in range(part.size)])
        self.high = np.array([np.inf if part.high is None else part.high for part in parts for _ in range(part.size)])
        self.playing, self.speed, self.instruction = True, 1.0, ""
        self.is_watched = False
        self.start: Mapping[str, Any] | None = None
        self.jobs: deque[Mapping[str, Any]] = deque(maxlen=8)
        self._changed = threading.Condition()
        self._size = total(parts)
        self.begin()

    def apply(self, command: Mapping[str, Any]) -> None:
        """Take a command that `check_command` has accepted."""
        with self._changed:
            match command["do"]:
                case "play":
                    self.playing = True
                case "pause":
                    self.playing, self._single_steps = False, 0
                case "step":
                    self.playing, self._single_steps = False, self._single_steps + 1
                case "speed":
                    self.speed = float(command["speed"])
                case "drive":
                    self.driver, self.playing = command["driver"], True
                case "instruct":
                    self.instruction = command["instruction"].strip()
                case "act":
                    self._action = np.clip(np.asarray(command["action"], float), self.low, self.high)
                    self._action_expires, self._settle_steps = time.monotonic() + HOLD_S, SETTLE_STEPS
                case "look":
                    self.is_watched = True
                case "film" | "keep":
                    self.jobs.append(command)
                case "reset" | "finish" | "close" as do:
                    self._leave = do
                    self.start = command.get("start", self.start)
            self._changed.notify_all()

    def begin(self) -> None:
        """Reset the state of the previous episode."""
        with self._changed:
            self._leave, self._single_steps, self._settle_steps, self._action_expires = "", 0, 0, 0.0
            self._action = np.zeros(self._size)
            self.jobs.clear()

    def require_not_left(self) -> None:
        """Raise EpisodeLeft if the episode was stopped."""
        if self._leave:
            raise EpisodeLeft(self._leave)

    def wait(self, ready: Callable[[], bool], idle: Callable[[], None], until: float = math.inf) -> None:
        """Wait until `ready`, or until a time.monotonic(), calling `idle` meanwhile. Raises EpisodeLeft."""
        while True:
            idle()
            with self._changed:
                self.require_not_left()
                now = time.monotonic()
                if now >= until or ready():
                    return
                self._changed.wait(min(POLL_S, until - now))

    def take_step(self) -> bool:
        """Return whether to execute the next step, and count it if it is a requested single step."""
        if self._single_steps:
            self._single_steps -= 1
            return True
        is_moving = time.monotonic() < self._action_expires or self._settle_steps > 0
        return self.playing and (self.driver == "policy" or is_moving)

    def action(self) -> np.ndarray:
        """Return the person's action for this step, float32 [m]; movements end after HOLD_S."""
        if time.monotonic() < self._action_expires:
            return self._action.astype(np.float32)
        self._settle_steps = max(0, self._settle_steps - 1)
        return np.where(self.is_movement, 0.0, self._action).astype(np.float32)
