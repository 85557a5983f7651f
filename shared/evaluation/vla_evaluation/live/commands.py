"""Commands from pages to a session: session requests, their checks, their effect on an episode, and their framing.

Numbers and names are checked here, once. Of `Controls` one thread calls `apply` with a command, the simulator's thread
all other methods.
"""

from __future__ import annotations

import json
import math
import secrets
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np

from vla_contract.protocol.errors import did_you_mean, shorten
from vla_contract.protocol.parts import Part, total
from vla_evaluation.benchmark import Benchmark
from vla_evaluation.recording.trajectory import movement_mask

PERSON_STEPS = 2000  # of an episode without a policy: a person needs several times a protocol's limit
MAX_START_NUMBER = 2**31  # start states can be requested by a number below this
INSTRUCTION_CHARS = 500
MAX_SPEED = 100.0
LENGTHS = struct.Struct("<II")  # bytes of the JSON head, bytes of what follows; browsers read the same form
MAX_BYTES = 64 * 2**20
PLAIN_COMMANDS = ("play", "pause", "step", "finish", "close")
HOLD_S = 0.5  # a person's action lasts this long, so the arm stops when the connection is lost
SETTLE_STEPS = 10  # after a person's action, in which a released object falls; then the simulation waits for the next
POLL_S = 0.05  # between two checks for the end of a person's action, which no command announces


@dataclass(frozen=True)
class SessionRequest:
    """The task, start and policy of a session.

    init      index of an init state of the evaluation; None: the start is sampled as in recordings
    start_number  number that a sampled start depends on
    policy    one of the service's policies by name, at `policy_url`; empty: a person drives
    """

    suite: str
    task: int
    init: int | None = None
    start_number: int = 0
    policy: str = ""
    policy_url: str = ""

    @property
    def start(self) -> dict[str, int]:
        """The start state as commands name it."""
        return {"drawn": self.start_number} if self.init is None else {"init": self.init}

    def with_start(self, start: Any) -> SessionRequest:
        """Return it with another start: {"init": k}, {"drawn": n}, or None for a new sampled one; else ValueError."""
        if start is None:
            return replace(self, init=None, start_number=secrets.randbelow(MAX_START_NUMBER))
        if not isinstance(start, Mapping) or len(start) != 1 or next(iter(start)) not in ("init", "drawn"):
            raise ValueError(f"start is {shorten(start, 100)}; expected {{'init': k}}, {{'drawn': n}} or null")
        if "init" in start:
            return replace(self, init=require_index("start.init", start["init"], 10_000))
        return replace(self, init=None, start_number=require_index("start.drawn", start["drawn"], MAX_START_NUMBER))

    def require_init_state(self, benchmark: Benchmark) -> SessionRequest:
        """Return it. ValueError for an init state that its task does not have."""
        if self.init is not None:
            states = benchmark.init_states(benchmark.tasks(self.suite)[self.task])
            require_index("start.init", self.init, len(states))
        return self


def require_index(name: str, value: Any, below: int) -> int:
    """Return an integer in [0, below). ValueError for anything else."""
    if type(value) is not int or not 0 <= value < below:
        raise ValueError(f"{name} is {shorten(value, 40)}; expected an integer from 0 to {below - 1}")
    return value


def parse_request(benchmark: Benchmark, policies: Mapping[str, str], body: Mapping[str, Any]) -> SessionRequest:
    """Return the session that a body requests. ValueError for an unknown suite, task, policy or start."""
    suite, policy = body.get("suite"), body.get("policy") or ""
    if not isinstance(suite, str) or suite not in benchmark.suites:
        raise ValueError(f"suite {shorten(suite)} not found{did_you_mean(shorten(suite), benchmark.suites)}")
    task = require_index("task", body.get("task", 0), len(benchmark.tasks(suite)))
    if policy and (not isinstance(policy, str) or policy not in policies):
        names = ", ".join(policies) or "none"
        raise ValueError(f"policy {shorten(policy)} not found; this service has: {names}")
    request = SessionRequest(suite, task, policy=policy, policy_url=policies.get(policy, ""))
    return request.with_start(body.get("start")).require_init_state(benchmark)


def check_command(command: Mapping[str, Any], parts: Sequence[Part], has_policy: bool) -> dict[str, Any]:
    """Return a command with the keys that it may have. ValueError for an invalid one."""
    do = command.get("do")
    if do in PLAIN_COMMANDS:
        return {"do": do}
    if do == "speed":
        return {"do": do, "speed": _number("speed", command.get("speed"), 0.0, MAX_SPEED)}
    if do == "drive" and (driver := command.get("driver")) in ("policy", "person"):
        if driver == "policy" and not has_policy:
            raise ValueError("this session has no policy; open one with a policy")
        return {"do": do, "driver": driver}
    if do == "instruct" and isinstance(text := command.get("instruction"), str):
        if len(text) > INSTRUCTION_CHARS:
            raise ValueError(f"the instruction has {len(text)} characters; expected {INSTRUCTION_CHARS} at most")
        return {"do": do, "instruction": text}
    if do == "act":
        action, size = command.get("action"), total(parts)
        if not isinstance(action, list) or len(action) != size:
            raise ValueError(f"action is {shorten(action)}; expected {size} numbers")
        return {"do": do, "action": [_number("action", value, -1e6, 1e6) for value in action]}
    if do == "reset":
        return {"do": do, "start": command.get("start")}  # `SessionRequest.with_start` checks it
    commands = ", ".join((*PLAIN_COMMANDS, "speed", "drive", "instruct", "act", "reset"))
    raise ValueError(f"invalid command {shorten(command, 120)}; expected one of {commands}, with its arguments")


def _number(name: str, value: Any, low: float, high: float) -> float:
    if type(value) not in (int, float) or not low <= value <= high:
        raise ValueError(f"{name} is {shorten(value, 40)}; expected a number from {low:g} to {high:g}")
    return float(value)


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


def pack(head: Mapping[str, Any], *blobs: bytes) -> bytes:
    """Return a message: the lengths of head and blobs, the head as JSON, the blobs."""
    text = json.dumps(head, separators=(",", ":"), allow_nan=False).encode()
    return b"".join((LENGTHS.pack(len(text), sum(map(len, blobs))), text, *blobs))


def receive(stream: BinaryIO) -> dict[str, Any] | None:
    """Return the next message's head, None if the connection is closed; bytes after the head are dropped."""
    try:
        lengths = stream.read(LENGTHS.size)
        if len(lengths) < LENGTHS.size:
            return None
        head, rest = LENGTHS.unpack(lengths)
        text = stream.read(head + rest)
    except OSError:
        return None
    return json.loads(text[:head]) if len(text) == head + rest else None
