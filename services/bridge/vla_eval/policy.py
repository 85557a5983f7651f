"""A model server of vla-eval's as a policy of this lab: the contract on one side, vla-eval's protocol on the other."""

from __future__ import annotations

import logging
from typing import Any

from services.bridge.connection import AnswerTimeout, IncompatibleServer, ServerFailed
from services.bridge.policy import FIRST_S, metadata_text, truncate_metadata
from services.bridge.robots import blank
from services.bridge.vla_eval.connection import ModelServer, answers_health
from services.bridge.vla_eval.robots import (
    ABSOLUTE_ACTION,
    FULL_ROTATION,
    SEND_STATE,
    SEND_WRIST_IMAGE,
    VlaEvalRobot,
    assumed_formats,
    find_mismatch,
)
from services.bridge.wire import ProtocolError
from vla_contract import ActionChunk, Observation, Policy, PolicyInfo, PolicyLost
from vla_contract.protocol.errors import UnknownSession
from vla_contract.protocol.problems import Problem

log = logging.getLogger("vla_contract")
NAME = "vla-eval"
MAX_BATCH = 64  # vla-eval's servers batch the observations of several connections


class VlaEvalPolicy(Policy):
    """Client with one connection per session: the server keeps an episode's chunks and state per connection.

    Raises IncompatibleServer if the server does not fit this robot or its answer to a black image is not usable,
    PolicyLost if it does not answer.
    """

    def __init__(self, server: ModelServer, robot: VlaEvalRobot, name: str = NAME, lock_hash: str | None = None):
        self.server, self.robot, self._name, self._lock_hash = server, robot, name, lock_hash
        self.hello = server.connect()
        params = self.hello.get("observation_params")
        self.params: dict[str, Any] = params if isinstance(params, dict) else {}
        self._sessions: dict[str, ModelServer] = {}
        if mismatch := find_mismatch(self.hello):
            self.close()
            raise IncompatibleServer(f"{server.url} {mismatch}: serve a model of this robot")
        unsupported = self.params.keys() - {SEND_WRIST_IMAGE, SEND_STATE, FULL_ROTATION, ABSOLUTE_ACTION}
        if unsupported:
            log.warning(
                "the server sets %s for vla-eval's benchmark; set the same options of eval", sorted(unsupported)
            )
        try:
            server.start({"name": "warm-up"})
            server.send(robot.message(self.example(), self.params))
            robot.actions(server.action(FIRST_S))
            server.end()
        except ServerFailed as error:
            raise IncompatibleServer(str(error)) from error
        except (ProtocolError, ValueError) as error:
            raise IncompatibleServer(f"{server.url}: {error}") from error
        finally:
            server.close()

    def info(self) -> PolicyInfo:
        """Return the server's inputs and outputs, with the start of its hello."""
        wire_images = self.robot.images.items()
        return PolicyInfo(
            name=self._name,
            action=self.robot.action,
            state=self.robot.state_parts if self.params.get(SEND_STATE) else (),
            device="another server",
            cameras=tuple(camera for key, camera in wire_images if self.robot.sends_image(key, self.params)),
            image_hw=self.robot.image_hw,
            max_batch=MAX_BATCH,
            stateful=True,
            profile=self.robot.profile,
            lock_hash=self._lock_hash,
            details={"protocol": NAME, "metadata": truncate_metadata(self.hello), **self._assumed()},
        )

    def _assumed(self) -> dict[str, str]:
        formats = assumed_formats(self.hello)
        return {"assumed": f"{formats}: the server does not state it"} if formats else {}

    def example(self) -> Observation:
        """Return black images, a state of zeros and an instruction."""
        return blank(self.robot)

    def act(self, observations: list[Observation]) -> list[ActionChunk | Exception]:
        """Return a chunk of one action, or an error, for every observation; all are sent before the first is read."""
        connections = [self._ask(observation) for observation in observations]
        return [
            connection if isinstance(connection, Exception) else self._read(connection) for connection in connections
        ]

    def reset(self, session: str) -> None:
        """End a session's episode."""
        connection = self._sessions.pop(session, None)
        if connection is not None and connection.is_open:
            try:
                connection.end()
            except PolicyLost as error:
                log.warning("%s", error)
            connection.close()

    def close(self) -> None:
        """Close all connections."""
        for connection in (self.server, *self._sessions.values()):
            connection.close()
        self._sessions.clear()

    def _ask(self, observation: Observation) -> ModelServer | Exception:
        try:
            if observation.step == 0:
                self.reset(observation.session)
                self._sessions[observation.session] = self._begin(observation.instruction)
            connection = self._sessions.get(observation.session)
            if connection is None or not connection.is_open:
                return UnknownSession(
                    f"the episode's connection to {self.server.url} is closed: start the episode again"
                )
            connection.send(self.robot.message(observation, self.params))
            return connection
        except IncompatibleServer as error:
            return PolicyLost(str(error))
        except PolicyLost as error:
            return self._lost(error)

    def _begin(self, instruction: str) -> ModelServer:
        """Connect and start an episode. Raises PolicyLost, or IncompatibleServer for another server."""
        connection = ModelServer(self.server.url, self.server.key, self.server.hello_s, self.server.answer_s)
        hello = connection.connect()
        if metadata_text(hello) != metadata_text(self.hello):
            connection.close()
            raise IncompatibleServer(f"another server runs at {self.server.url}: its hello changed")
        connection.start({"name": instruction})
        return connection

    def _lost(self, error: PolicyLost) -> Exception:
        """Return the error of a lost connection: of this episode alone, or of the server."""
        if isinstance(error, AnswerTimeout):
            return error
        try:
            answers_health(self.server.url, self.server.key)
        except PolicyLost as unreachable:
            return unreachable
        return UnknownSession(f"{error}: start the episode again")

    def _read(self, connection: ModelServer) -> ActionChunk | Exception:
        try:
            return ActionChunk(self.robot.actions(connection.action()))
        except PolicyLost as error:
            return self._lost(error)
        except ServerFailed as error:
            return Problem("policy-failed", str(error))
        except ValueError as error:  # an invalid message or action
            return Problem("invalid-action", f"{self.server.url}: {error}")
