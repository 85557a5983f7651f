"""A model server of vla-eval's as a policy of this lab: the contract on one side, vla-eval's protocol on the other."""

from __future__ import annotations

import logging

from services.bridge.connection import AnswerTimeout, IncompatibleServer, ServerFailed, outcome
from services.bridge.policy import FIRST_S, metadata_text, truncate_metadata
from services.bridge.robots import Robot
from services.bridge.vla_eval import robots
from services.bridge.vla_eval.connection import ModelServer, answers_health
from vla_contract import ActionChunk, Observation, Policy, PolicyInfo, PolicyLost
from vla_contract.protocol.errors import UnknownSession

log = logging.getLogger("vla_contract")
NAME = "vla-eval"
MAX_BATCH = 64  # vla-eval's servers batch the observations of several connections


class VlaEvalPolicy(Policy):
    """Client with one connection per session: the server keeps an episode's chunks and state per connection.

    Raises IncompatibleServer if the server does not fit this robot or its answer to a black image is not usable,
    PolicyLost if it does not answer.
    """

    def __init__(self, server: ModelServer, robot: Robot, name: str = NAME, lock_hash: str = ""):
        self.server, self.robot, self._name, self._lock_hash = server, robot, name, lock_hash
        self._sessions: dict[str, ModelServer] = {}
        self.hello = server.connect()
        self.params = robots.parameters(self.hello)
        try:
            if mismatch := robots.find_mismatch(self.hello):
                raise IncompatibleServer(f"{server.url} {mismatch}: serve a model of this robot")
            known = {robots.WRIST_IMAGE, robots.SEND_STATE, robots.FULL_ROTATION, robots.ABSOLUTE_ACTION}
            if others := sorted(self.params.keys() - known):
                log.warning("the server sets %s for vla-eval's benchmark; set the same options of eval", others)
            server.start({"name": "warm-up"})
            server.observe(robots.message(robot, self.example(), self.params))
            robots.read_actions(robot, server.receive(FIRST_S))
            server.end()
        except (ServerFailed, ValueError) as error:
            raise IncompatibleServer(f"{server.url}: {error}") from error
        finally:
            server.close()

    def info(self) -> PolicyInfo:
        """Return the server's inputs and outputs, with the start of its hello."""
        details = {"protocol": NAME, "metadata": truncate_metadata(self.hello)}
        if formats := robots.assumed_formats(self.hello):
            details["assumed"] = f"{formats}: the server does not state it"
        return PolicyInfo(
            name=self._name,
            action=self.robot.action,
            state=self.robot.state_parts if self.params.get(robots.SEND_STATE) else (),
            device="another server",
            cameras=tuple(robots.sent_images(self.robot, self.params).values()),
            image_hw=self.robot.image_hw,
            max_batch=MAX_BATCH,
            stateful=True,
            profile=self.robot.profile,
            lock_hash=self._lock_hash or None,
            details=details,
        )

    def example(self) -> Observation:
        """Return black images, a state of zeros and an instruction."""
        return self.robot.blank()

    def act(self, observations: list[Observation]) -> list[ActionChunk | Exception]:
        """Return a chunk of one action, or an error, for every observation; all are sent before the first is read."""
        asked = [self._ask(observation) for observation in observations]
        return [self._read(entry) if isinstance(entry, ModelServer) else entry for entry in asked]

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
        """Send an observation on its session's connection, a new one at step 0; return the connection or the error."""
        url, session = self.server.url, observation.session
        try:
            if observation.step == 0:
                self.reset(session)
                connection = ModelServer(url, self.server.key, self.server.hello_s, self.server.answer_s)
                if metadata_text(connection.connect()) != metadata_text(self.hello):
                    connection.close()
                    return PolicyLost(f"another server runs at {url}: its hello changed")
                connection.start({"name": observation.instruction})
                self._sessions[session] = connection
            if session not in self._sessions or not self._sessions[session].is_open:
                return UnknownSession(f"the episode's connection to {url} is closed: start the episode again")
            self._sessions[session].observe(robots.message(self.robot, observation, self.params))
            return self._sessions[session]
        except IncompatibleServer as error:
            return PolicyLost(str(error))
        except PolicyLost as error:
            return self._lost(error)

    def _read(self, connection: ModelServer) -> ActionChunk | Exception:
        read = outcome(self.server.url, lambda: robots.read_actions(self.robot, connection.receive()))
        return self._lost(read) if isinstance(read, PolicyLost) else read

    def _lost(self, error: PolicyLost) -> Exception:
        """Return the error of a lost connection: of this episode alone, or of the server."""
        if isinstance(error, AnswerTimeout):
            return error
        try:
            answers_health(self.server.url, self.server.key)
        except PolicyLost as unreachable:
            return unreachable
        return UnknownSession(f"{error}: start the episode again")
