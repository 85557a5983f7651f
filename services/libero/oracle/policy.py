"""The oracle as a policy of the contract: one running script per session, fed with the state of each observation."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from services.libero.oracle import plan
from services.libero.oracle.example import example_state
from services.libero.oracle.motion import Skill
from services.libero.oracle.scene import SceneState, World
from vla_contract import ActionChunk, InvalidObservation, Observation, Policy, PolicyInfo, UnknownSession
from vla_contract.protocol.parts import GRIPPER_CLOSES, OSC_POSE

log = logging.getLogger(__name__)
MAX_EPISODES = 512  # in memory, at least 60 kB each; the least recently used is dropped first
MAX_BATCH = 64  # observations are computed one after the other; limits the time of a request


@dataclass
class EpisodeState:
    """A session's world, the script that solves it, and its last step."""

    world: World
    script: Skill
    step: int


class OraclePolicy(Policy):
    """Solves LIBERO tasks from privileged state. Stateful: an episode must be seen from its step 0 on."""

    def __init__(self, solve: Callable[[SceneState], Skill] = plan.solve, lock_hash: str | None = None):
        self._solve = solve
        self._lock_hash = lock_hash
        self._episodes: dict[str, EpisodeState] = {}

    def info(self) -> PolicyInfo:
        """Describe the policy: it needs privileged state, no cameras and no proprioception."""
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
        """Return one action per observation, or its error: invalid state, unknown session, failed skill."""
        return [self._act_single(observation) for observation in observations]

    def example(self) -> Observation:
        """Return an example observation: a cube to be put on a tray."""
        return Observation({}, None, "put the cube on the tray", "example", 0, privileged=example_state())

    def _act_single(self, observation: Observation) -> ActionChunk | Exception:
        """Return the action, or the error. A failed script cannot continue, so its episode is dropped.

        A state can consist of valid numbers and still be an impossible scene, which only the script detects: any error
        becomes an InvalidObservation that names the source line.
        """
        session, step, state = observation.session, observation.step, observation.privileged
        previous = self._episodes.pop(session, None)
        if state is None:
            return InvalidObservation("privileged is missing; the oracle needs the state from simulator/privileged.py")
        if step == 0 and "static" not in state:
            return InvalidObservation(
                "privileged has no 'static'; step 0 needs privileged.observe(domain, static=True)"
            )
        try:
            if step == 0:
                world = World.from_static(state["static"])
                scene = SceneState.from_state(world, state, step)
                for goal in plan.unserved(scene):
                    log.warning("session %r: no skill serves %r", session, (goal.name, *goal.args))
                episode = EpisodeState(world, self._solve(scene), step)
                action = next(episode.script)
            elif previous is None or step <= previous.step:
                return UnknownSession(
                    f"unknown session {session!r} at step {step}; the oracle must see an episode from its step 0 on"
                )
            else:
                episode = EpisodeState(previous.world, previous.script, step)
                action = episode.script.send(SceneState.from_state(episode.world, state, step))
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            return InvalidObservation(
                f"invalid privileged state ({type(error).__name__}: {str(error)[:300]}; {Path(frame.filename).name}, "
                f"{frame.name}); send the state from simulator/privileged.py"
            )
        self._episodes[session] = episode
        while len(self._episodes) > MAX_EPISODES:
            del self._episodes[next(iter(self._episodes))]  # active sessions are reinserted at the end
        return ActionChunk(action[None])
