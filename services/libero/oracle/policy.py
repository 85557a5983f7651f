"""The oracle as a policy of the contract: one running script per session, fed with the state of each observation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.libero.oracle import plan
from services.libero.oracle.example import example_state
from services.libero.oracle.motion import Skill
from services.libero.oracle.scene import Scene, World
from vla_contract import ActionChunk, InvalidObservation, Observation, PolicyInfo, UnknownSession

log = logging.getLogger(__name__)
MAX_BATCH = 64  # it computes one observation after the other: a limit of politeness, not of memory


@dataclass
class Episode:
    """A session's world, the script that is solving it, and how far it has come."""

    world: World
    script: Skill
    step: int


class OraclePolicy:
    """Solves LIBERO tasks from privileged state. Stateful: an episode must be seen from its step 0 on."""

    def __init__(self, solve: Callable[[Scene], Skill] = plan.solve, lock_hash: str | None = None):
        self._solve = solve
        self._lock_hash = lock_hash
        self._episodes: dict[str, Episode] = {}

    def info(self) -> PolicyInfo:
        """Returns what it is and needs: no camera, no proprioception, privileged state."""
        return PolicyInfo(
            name="oracle",
            needs_privileged=True,
            action_convention="libero",
            max_batch=MAX_BATCH,
            stateful=True,
            lock_hash=self._lock_hash,
        )

    def reset(self, session: str) -> None:
        """Forgets a session."""
        self._episodes.pop(session, None)

    def act(self, observations: list[Observation]) -> list[ActionChunk | Exception]:
        """Returns one action per observation, or the error that it deserves: bad state, lost session, failed skill."""
        return [self._act_or_refuse(observation) for observation in observations]

    def example(self) -> Observation:
        """Returns the first observation of a made-up episode: a cube to be put on a tray."""
        return Observation({}, None, "put the cube on the tray", "example", 0, privileged=example_state())

    def _act_or_refuse(self, observation: Observation) -> ActionChunk | Exception:
        try:
            action = self._start(observation) if observation.step == 0 else self._continue(observation)
        except Exception as error:  # returned, not raised: one episode's fault must not end its batch's others
            return error
        return ActionChunk(action[None])

    def _start(self, observation: Observation) -> np.ndarray:
        state = _privileged(observation)
        if "static" not in state:
            raise InvalidObservation("privileged has no 'static'; step 0 needs privileged.observe(domain, static=True)")
        world = read(World.from_static, state["static"])
        scene = read(Scene.from_state, world, state, observation.step)
        for goal in plan.unserved(scene):
            log.warning("session %s: no skill serves %s%s", observation.session, goal.name, goal.args)
        script = self._solve(scene)
        self._episodes[observation.session] = Episode(world, script, observation.step)
        return next(script)

    def _continue(self, observation: Observation) -> np.ndarray:
        episode = self._episodes.get(observation.session)
        if episode is None or observation.step <= episode.step:
            raise UnknownSession(
                f"session {observation.session!r} is not known at step {observation.step}; the oracle follows an "
                "episode from its step 0 on: start it again"
            )
        episode.step = observation.step
        return episode.script.send(read(Scene.from_state, episode.world, _privileged(observation), observation.step))


def _privileged(observation: Observation) -> Mapping[str, Any]:
    if observation.privileged is None:
        raise InvalidObservation("privileged is missing; the oracle needs what simulator/privileged.py sends")
    return observation.privileged


def read(parse: Callable[..., Any], *arguments: Any) -> Any:
    """Returns `parse(*arguments)`; a missing or misshapen part of the state becomes an InvalidObservation."""
    try:
        return parse(*arguments)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise InvalidObservation(
            f"privileged cannot be read ({type(error).__name__}: {error}); send what simulator/privileged.py makes"
        ) from error
