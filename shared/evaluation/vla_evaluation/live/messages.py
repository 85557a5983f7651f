"""Messages between pages, the service and a session's process: session requests, commands, and their framing.

Numbers and names are checked here, once.
"""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from vla_contract.protocol.errors import did_you_mean, shorten
from vla_contract.protocol.parts import Part, total
from vla_evaluation.benchmark import Benchmark

PERSON_STEPS = 2000  # of an episode without a policy: a person needs several times a protocol's limit
MAX_START_NUMBER = 2**31  # start states can be requested by a number below this
INSTRUCTION_CHARS = 500
MAX_SPEED = 100.0
LENGTHS = struct.Struct("<II")  # bytes of the JSON head, bytes of what follows; browsers read the same form
MAX_BYTES = 64 * 2**20
PLAIN_COMMANDS = ("play", "pause", "step", "finish", "close")


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
