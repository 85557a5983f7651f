"""The oracle as a policy of the contract: one running script per session, fed with the state of each observation."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.libero.oracle import plan
from services.libero.oracle.example import example_state
from services.libero.oracle.motion import Skill
from services.libero.oracle.scene import Scene, World
from vla_contract import ActionChunk, ContractError, InvalidObservation, Observation, Policy, PolicyInfo, UnknownSession
from vla_contract.protocol.parts import GRIPPER_CLOSES, OSC_POSE

log = logging.getLogger(__name__)
MAX_EPISODES = 512  # held at once, of 60 kB and more each; the one that has not moved for longest is forgotten first
MAX_BATCH = 64  # it computes one observation after the other: a limit of politeness, not of memory


@dataclass
class Episode:
    """A session's world, the script that is solving it, and how far it has come."""

    world: World
    script: Skill
    step: int


class OraclePolicy(Policy):
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
            action=(*OSC_POSE, GRIPPER_CLOSES),
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
        """Returns the action, or the error. A script that failed cannot go on: its episode is forgotten."""
        known = self._episodes.pop(observation.session, None)
        try:
            episode, chunk = self._begun(observation) if observation.step == 0 else _continued(observation, known)
        except ContractError as error:  # returned, not raised: one episode's fault must not end its batch's others
            return error
        self._keep(observation.session, episode)
        return chunk

    def _begun(self, observation: Observation) -> tuple[Episode, ActionChunk]:
        state = _privileged(observation)
        if "static" not in state:
            raise InvalidObservation("privileged has no 'static'; step 0 needs privileged.observe(domain, static=True)")
        return guarded(self._first, observation, state)

    def _first(self, observation: Observation, state: Mapping[str, Any]) -> tuple[Episode, ActionChunk]:
        world = World.from_static(state["static"])
        scene = Scene.from_state(world, state, observation.step)
        for goal in plan.unserved(scene):
            log.warning("session %r: no skill serves %r", observation.session, (goal.name, *goal.args))
        script = self._solve(scene)
        return Episode(world, script, observation.step), ActionChunk(next(script)[None])

    def _keep(self, session: str, episode: Episode) -> None:
        self._episodes[session] = episode
        while len(self._episodes) > MAX_EPISODES:
            del self._episodes[next(iter(self._episodes))]  # a session that moves is put at the end again


def _continued(observation: Observation, episode: Episode | None) -> tuple[Episode, ActionChunk]:
    if episode is None or observation.step <= episode.step:
        raise UnknownSession(
            f"session {observation.session!r} is not known at step {observation.step}; the oracle follows an "
            "episode from its step 0 on: start it again"
        )
    return guarded(_next, episode, _privileged(observation), observation.step)


def _next(episode: Episode, state: Mapping[str, Any], step: int) -> tuple[Episode, ActionChunk]:
    episode.step = step
    return episode, ActionChunk(episode.script.send(Scene.from_state(episode.world, state, step))[None])


def _privileged(observation: Observation) -> Mapping[str, Any]:
    if observation.privileged is None:
        raise InvalidObservation("privileged is missing; the oracle needs what simulator/privileged.py sends")
    return observation.privileged


def guarded(run: Callable[..., Any], *arguments: Any) -> Any:
    """Returns `run(*arguments)`, which reads a state and lets the script look at it.

    Whatever fails on the way becomes an InvalidObservation: a state can be made so that every number in it may stand
    there and the scene still makes no sense, and only the script finds out. The text says where.
    """
    try:
        return run(*arguments)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise InvalidObservation(
            f"privileged cannot be read ({type(error).__name__}: {str(error)[:300]}; {Path(where.filename).name}, "
            f"{where.name}); send what simulator/privileged.py makes"
        ) from error
