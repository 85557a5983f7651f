"""Another project's policy server as a policy of this lab: the contract on one side, openpi's protocol on the other."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from services.bridge.connection import AnswerTimeout, IncompatibleServer, OpenpiServer, ServerFailed, outcome
from services.bridge.robots import ACTIONS, Robot, describe, message
from vla_contract import ActionChunk, Observation, Policy, PolicyInfo, PolicyLost
from vla_contract.protocol.errors import did_you_mean
from vla_contract.protocol.parts import format_parts, total
from vla_contract.protocol.types import check_actions

log = logging.getLogger("vla_contract")
P = TypeVar("P", bound=Policy)
NAME = "openpi"
FIRST_S = 600.0  # JAX compiles the model for the first observation
PAUSE_S = 1.0
MAX_HORIZON = 1000  # openpi's chunks have 10 to 50 actions
MAX_METADATA_CHARS = 500  # characters of metadata in `PolicyInfo.details`


class BridgePolicy(Policy):
    """Client of a connected server with its `metadata`; sends one observation at a time, as openpi's servers require.

    The server does not state its chunk length: the answer to a black image shows it. `name` is the policy's name in
    runs. Raises IncompatibleServer if that answer is not usable, PolicyLost if there is none.
    """

    def __init__(
        self, server: OpenpiServer, metadata: dict[str, Any], robot: Robot, name: str = NAME, lock_hash: str = ""
    ):
        self.server, self.metadata, self.robot = server, metadata, robot
        self._name, self._lock_hash, self._reconnected = name, lock_hash, 0
        self.horizon: int | None = None
        try:
            self.horizon = len(self._read(server.ask(message(robot, self.example()), FIRST_S)))
        except (ServerFailed, ValueError) as error:
            raise IncompatibleServer(f"{server.url}: {error}") from error

    def info(self) -> PolicyInfo:
        """Return inputs and outputs of the robot's openpi models, with the start of the server's metadata."""
        return PolicyInfo(
            name=self._name,
            action=self.robot.action,
            state=self.robot.state_parts,
            device="another server",
            cameras=tuple(self.robot.images.values()),
            image_hw=self.robot.image_hw,
            horizon=self.horizon,
            profile=self.robot.profile,
            lock_hash=self._lock_hash or None,
            details={
                "protocol": NAME,
                "metadata": truncate_metadata(self.metadata),
                "assumed": f"actions are {', '.join(map(str, self.robot.action))}; the model is one of profile "
                f"{self.robot.profile}: the server states neither",
            },
        )

    def example(self) -> Observation:
        """Return black images, a state of zeros and an instruction."""
        return self.robot.blank()

    def act(self, observations: list[Observation]) -> list[ActionChunk | Exception]:
        """Return a chunk or an error for every observation."""
        return [self._chunk(observation) for observation in observations]

    def _chunk(self, observation: Observation) -> ActionChunk | Exception:
        return outcome(self.server.url, lambda: self._read(self._ask(message(self.robot, observation))))

    def counters(self) -> dict[str, int]:
        """Return the number of reconnects."""
        return {"reconnected": self._reconnected}

    def close(self) -> None:
        """Close the connection."""
        self.server.close()

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the answer; reconnect if the connection is gone: openpi's servers keep no state."""
        if self.server.is_open:
            try:
                return self.server.ask(message)
            except AnswerTimeout:
                raise
            except PolicyLost as error:
                log.warning("%s; reconnecting", error)
        metadata = self.server.connect()
        self._reconnected += 1
        if metadata_text(metadata) != metadata_text(self.metadata):
            self.server.close()
            raise PolicyLost(f"another server runs at {self.server.url}: its metadata changed")
        return self.server.ask(message)

    def _read(self, answer: dict[str, Any]) -> np.ndarray:
        """Return an answer's actions, float32 [T, n]. Raises ValueError."""
        actions, size = answer.get(ACTIONS), total(self.robot.action)
        if ACTIONS not in answer:
            raise ValueError(f"the answer has no {ACTIONS!r}{did_you_mean(ACTIONS, list(answer)[:20])}")
        if not isinstance(actions, np.ndarray) or actions.dtype.kind != "f" or actions.shape[1:] != (size,):
            expected = f"floats [T, {size}]: {format_parts(self.robot.action)}"
            raise ValueError(f"the actions are {describe(actions)}; expected {expected}: serve a model of this robot")
        if not 0 < len(actions) <= MAX_HORIZON:
            raise ValueError(f"the answer has {len(actions)} actions; expected 1 to {MAX_HORIZON}")
        with np.errstate(over="ignore"):
            chunk = actions.astype(np.float32)
        check_actions(chunk, size, self.horizon)
        return chunk


def wait_for(connect: Callable[[], P], wait_s: float, report: Callable[[str], None] = log.info) -> P:
    """Call `connect` until it succeeds, and return its policy: a server loads weights before it listens.

    Raises the last PolicyLost after `wait_s` seconds.
    """
    end, last_reason = time.monotonic() + wait_s, ""
    while True:
        try:
            return connect()
        except PolicyLost as error:
            if time.monotonic() + PAUSE_S >= end:
                raise PolicyLost(f"{error} (waited {wait_s:g} s)") from error
            if str(error) != last_reason:
                last_reason = str(error)
                report(f"waiting up to {wait_s:g} s: {last_reason}")
        time.sleep(PAUSE_S)


def metadata_text(metadata: dict[str, Any]) -> str:
    """Return a server's metadata as JSON with sorted keys, for comparison."""

    def plain(value: Any) -> Any:
        return value.tolist() if isinstance(value, np.ndarray) else str(value)

    return json.dumps(metadata, default=plain, sort_keys=True)


def truncate_metadata(metadata: dict[str, Any]) -> str:
    """Return a server's metadata as JSON, cut to the size that `PolicyInfo.details` allows."""
    text = metadata_text(metadata)
    return text if len(text) <= MAX_METADATA_CHARS else text[: MAX_METADATA_CHARS - 1] + "…"
