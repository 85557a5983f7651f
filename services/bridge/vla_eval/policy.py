"""A model server of vla-eval's as a policy of this lab: the contract on one side, vla-eval's protocol on the other."""

from __future__ import annotations

import logging
from typing import Any

from services.bridge.connection import ServerFailed, TooSlow, WrongServer
from services.bridge.policy import FIRST_S, as_text, beginning
from services.bridge.robots import blank
from services.bridge.vla_eval.connection import ModelServer, answers_health
from services.bridge.vla_eval.robots import ABSOLUTE, TOLD, WHOLE_TURN, WRIST, Robot, misfit, unstated
from services.bridge.wire import NotTheirs
from vla_contract import ActionChunk, Observation, Policy, PolicyInfo, PolicyLost
from vla_contract.protocol.errors import UnknownSession
from vla_contract.protocol.problems import Problem

log = logging.getLogger("vla_contract")
NAME = "vla-eval"
MAX_BATCH = 64  # their servers make batches of what several connections ask


class VlaEvalPolicy(Policy):
    """Asks a server through a connection for each session: there it keeps an episode's chunks, and what else it has.

    Raises WrongServer where the server is none for this robot or its answer to a black picture is of no use,
    PolicyLost where there is none.
    """

    def __init__(self, server: ModelServer, robot: Robot, name: str = NAME, lock_hash: str | None = None):
        self.server, self.robot, self._name, self._lock_hash = server, robot, name, lock_hash
        self.said = server.connect()
        asks = self.said.get("observation_params")
        self.asks: dict[str, Any] = asks if isinstance(asks, dict) else {}
        self._sessions: dict[str, ModelServer] = {}
        if wrong := misfit(self.said):
            self.close()
            raise WrongServer(f"{server.url} {wrong}: serve a model of this robot")
        others = self.asks.keys() - {WRIST, TOLD, WHOLE_TURN, ABSOLUTE}
        if others:
            log.warning("the server asks vla-eval's benchmark for %s; give eval what of it counts", sorted(others))
        try:
            server.start({"name": "warm-up"})
            server.send(robot.message(self.example(), self.asks))
            robot.actions(server.action(FIRST_S))
            server.end()
        except ServerFailed as error:
            raise WrongServer(str(error)) from error
        except (NotTheirs, ValueError) as error:
            raise WrongServer(f"{server.url}: {error}") from error
        finally:
            server.close()

    def info(self) -> PolicyInfo:
        """Returns what the server asks for and answers, and of its hello the beginning."""
        images = self.robot.pictures.items()
        return PolicyInfo(
            name=self._name,
            action=self.robot.action,
            state=self.robot.state_parts if self.asks.get(TOLD) else (),
            device="another server",
            cameras=tuple(camera for key, camera in images if self.robot.shown(key, self.asks)),
            image_hw=self.robot.image_hw,
            max_batch=MAX_BATCH,
            stateful=True,
            profile=self.robot.profile,
            lock_hash=self._lock_hash,
            details={"protocol": NAME, "metadata": beginning(self.said), **self._assumed()},
        )

    def _assumed(self) -> dict[str, str]:
        formats = unstated(self.said)
        return {"assumed": f"{formats}: the server does not state it"} if formats else {}

    def example(self) -> Observation:
        """Returns black pictures, a state of zeros and a sentence."""
        return blank(self.robot)

    def act(self, observations: list[Observation]) -> list[ActionChunk | Exception]:
        """Returns a chunk of one action, or what is wrong, for every observation; all are sent before one is read."""
        asked = [self._ask(observation) for observation in observations]
        return [one if isinstance(one, Exception) else self._read(one) for one in asked]

    def reset(self, session: str) -> None:
        """Ends a session's episode."""
        connection = self._sessions.pop(session, None)
        if connection is not None and connection.is_open:
            try:
                connection.end()
            except PolicyLost as error:
                log.warning("%s", error)
            connection.close()

    def close(self) -> None:
        """Closes all connections."""
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
                return UnknownSession(f"the episode's connection to {self.server.url} is gone: start the episode again")
            connection.send(self.robot.message(observation, self.asks))
            return connection
        except WrongServer as error:
            return PolicyLost(str(error))
        except PolicyLost as error:
            return self._lost(error)

    def _begin(self, instruction: str) -> ModelServer:
        """Returns a connection on which an episode has begun. Raises PolicyLost, or WrongServer for another server."""
        connection = ModelServer(self.server.url, self.server.key, self.server.hello_s, self.server.answer_s)
        said = connection.connect()
        if as_text(said) != as_text(self.said):
            connection.close()
            raise WrongServer(f"another server came back at {self.server.url}: its hello is another")
        connection.start({"name": instruction})
        return connection

    def _lost(self, error: PolicyLost) -> Exception:
        """Returns what an episode's lost connection means: the episode is lost, or the server with all of them."""
        if isinstance(error, TooSlow):
            return error
        try:
            answers_health(self.server.url, self.server.key)
        except PolicyLost as gone:
            return gone
        return UnknownSession(f"{error}: start the episode again")

    def _read(self, connection: ModelServer) -> ActionChunk | Exception:
        try:
            return ActionChunk(self.robot.actions(connection.action()))
        except PolicyLost as error:
            return self._lost(error)
        except ServerFailed as error:
            return Problem("policy-failed", str(error))
        except ValueError as error:  # no message, or no action
            return Problem("invalid-action", f"{self.server.url}: {error}")
