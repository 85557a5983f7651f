"""Another project's policy server as a policy of this lab: the contract on one side, openpi's protocol on the other."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from services.bridge.connection import Server, ServerFailed, TooSlow, WrongServer
from services.bridge.robots import ACTIONS, Robot, blank, describe
from services.bridge.wire import NotTheirs
from vla_contract import ActionChunk, Observation, Policy, PolicyInfo, PolicyLost
from vla_contract.protocol.errors import did_you_mean
from vla_contract.protocol.parts import in_words, total
from vla_contract.protocol.problems import Problem
from vla_contract.protocol.types import check_actions

log = logging.getLogger("vla_contract")
P = TypeVar("P", bound=Policy)
NAME = "openpi"
FIRST_S = 600.0  # JAX compiles the model for the first observation
PAUSE_S = 1.0
MAX_HORIZON = 1000  # openpi's chunks have 10 to 50 actions
MAX_TOLD = 500  # characters of metadata in `PolicyInfo.details`


class BadActions(ValueError):
    """An answer holds no actions of this robot."""


class BridgePolicy(Policy):
    """Asks a connected server, `metadata` being what it said; one observation at a time, as openpi's servers answer.

    What a server does not tell is learnt from its answer to a black picture: how many actions a chunk has. `name` is
    what runs are called by. Raises WrongServer where that answer is of no use, PolicyLost where there is none.
    """

    def __init__(
        self, server: Server, metadata: dict[str, Any], robot: Robot, name: str = NAME, lock_hash: str | None = None
    ):
        self.server, self.metadata, self.robot = server, metadata, robot
        self._name, self._lock_hash, self._reconnected = name, lock_hash, 0
        try:
            first = self._read(server.ask(robot.message(self.example()), FIRST_S))
        except (BadActions, NotTheirs, ServerFailed) as error:
            raise WrongServer(str(error) if isinstance(error, ServerFailed) else f"{server.url}: {error}") from error
        self.horizon = len(first)

    def info(self) -> PolicyInfo:
        """Returns what the robot's openpi models need and answer, and of the server's metadata the beginning."""
        return PolicyInfo(
            name=self._name,
            action=self.robot.action,
            state=self.robot.state_parts,
            device="another server",
            cameras=tuple(self.robot.pictures.values()),
            image_hw=self.robot.image_hw,
            horizon=self.horizon,
            profile=self.robot.profile,
            lock_hash=self._lock_hash,
            details={
                "protocol": NAME,
                "metadata": beginning(self.metadata),
                "assumed": f"actions are {', '.join(map(str, self.robot.action))}; the model is one of profile "
                f"{self.robot.profile}: the server states neither",
            },
        )

    def example(self) -> Observation:
        """Returns black pictures, a state of zeros and a sentence."""
        return blank(self.robot)

    def act(self, observations: list[Observation]) -> list[ActionChunk | Exception]:
        """Returns a chunk, or what is wrong, for every observation."""
        return [self._chunk(observation) for observation in observations]

    def counters(self) -> dict[str, int]:
        """Returns how often a connection was opened anew."""
        return {"reconnected": self._reconnected}

    def close(self) -> None:
        """Closes the connection."""
        self.server.close()

    def _chunk(self, observation: Observation) -> ActionChunk | Exception:
        try:
            return ActionChunk(self._read(self._ask(self.robot.message(observation))))
        except PolicyLost as error:
            return error
        except WrongServer as error:
            return PolicyLost(str(error))
        except ServerFailed as error:
            return Problem("policy-failed", str(error))
        except ValueError as error:  # no message, or no actions
            return Problem("invalid-action", f"{self.server.url}: {error}")

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Returns the answer, of a new connection where the old one is gone: openpi's servers keep nothing between
        observations.
        """
        if self.server.is_open:
            try:
                return self.server.ask(message)
            except TooSlow:
                raise
            except PolicyLost as error:
                log.warning("%s; connecting again", error)
        self._connect_again()
        return self.server.ask(message)

    def _connect_again(self) -> None:
        metadata = self.server.connect()
        self._reconnected += 1
        if as_text(metadata) != as_text(self.metadata):
            self.server.close()
            raise PolicyLost(f"another server came back at {self.server.url}: its metadata are others")

    def _read(self, answer: dict[str, Any]) -> np.ndarray:
        """Returns an answer's actions, float32 [T, n]. Raises BadActions."""
        actions, size = answer.get(ACTIONS), total(self.robot.action)
        if ACTIONS not in answer:
            raise BadActions(f"the answer has no {ACTIONS!r}{did_you_mean(ACTIONS, list(answer)[:20])}")
        if not isinstance(actions, np.ndarray) or actions.dtype.kind != "f" or actions.shape[1:] != (size,):
            wanted = f"floats [T, {size}]: {in_words(self.robot.action)}"
            raise BadActions(f"the actions are {describe(actions)}; expected {wanted}: serve a model of this robot")
        if not 0 < len(actions) <= MAX_HORIZON:
            raise BadActions(f"the answer has {len(actions)} actions; expected 1 to {MAX_HORIZON}")
        with np.errstate(over="ignore"):
            found = actions.astype(np.float32)
        try:
            check_actions(found, size, getattr(self, "horizon", None))
        except ValueError as error:
            raise BadActions(str(error)) from error
        return found


def load(
    server: Server, robot: Robot, name: str, wait_s: float, lock_hash: str | None, say: Callable[[str], None] = log.info
) -> BridgePolicy:
    """Returns the policy once its server answers; see `wait_for`."""
    return wait_for(lambda: BridgePolicy(server, server.connect(), robot, name, lock_hash), wait_s, say)


def wait_for(made: Callable[[], P], wait_s: float, say: Callable[[str], None] = log.info) -> P:
    """Returns what `made` returns once a server answers, which loads weights before it listens.

    Raises PolicyLost, with what was wrong last, where that takes longer than `wait_s`.
    """
    end, told = time.monotonic() + wait_s, ""
    while True:
        try:
            return made()
        except PolicyLost as error:
            if time.monotonic() + PAUSE_S >= end:
                raise PolicyLost(f"{error} (waited {wait_s:g} s)") from error
            if str(error) != told:
                told = str(error)
                say(f"waiting up to {wait_s:g} s: {told}")
        time.sleep(PAUSE_S)


def as_text(metadata: dict[str, Any]) -> str:
    """Returns what a server said of itself, to compare it."""
    return json.dumps(metadata, default=_plain, sort_keys=True)


def beginning(metadata: dict[str, Any]) -> str:
    """Returns of what a server said of itself as much as `PolicyInfo.details` has room for."""
    told = as_text(metadata)
    return told if len(told) <= MAX_TOLD else told[: MAX_TOLD - 1] + "…"


def _plain(value: Any) -> Any:
    """Returns what JSON has no word for as something that it has one for."""
    return value.tolist() if isinstance(value, np.ndarray) else str(value)
