"""Run the policy on a batch and check what it returns, request by request; and the first inference, for readiness."""

import logging
from dataclasses import dataclass

import numpy as np

from vla_contract.protocol.errors import InvalidObservation, PolicyLost, UnknownSession
from vla_contract.protocol.info import PolicyInfo
from vla_contract.protocol.problems import Problem
from vla_contract.protocol.types import ActionChunk, Observation, Policy, check_actions

log = logging.getLogger("vla_contract")
_SIDE = 224  # pixels of the example's images


@dataclass(eq=False)
class Outcome:
    """A valid chunk and its times. `batch` is the size of the batch of which this is the first, else 0."""

    chunk: ActionChunk
    queue_s: float = 0.0
    infer_s: float = 0.0
    batch: int = 0


class _InvalidOutput(Exception):
    """The policy's output breaks the contract."""


def run_batch(policy: Policy, info: PolicyInfo, observations: list[Observation]) -> list[Outcome | Problem]:
    """Return one outcome or problem per observation, in order.

    Where `act` raises for several, a stateless policy gets them one by one: the bad one fails alone. A stateful one
    may have moved on for some of them: all fail, and their episodes start again.
    """
    try:
        results = policy.act(observations)
        if not isinstance(results, (list, tuple)) or len(results) != len(observations):
            count = f"{len(results)} results" if isinstance(results, (list, tuple)) else f"a {type(results).__name__}"
            raise _InvalidOutput(f"the policy returned {count} for {len(observations)} observations")
    except Exception as error:
        if len(observations) == 1 or info.stateful:
            return [_as_problem(error)] * len(observations)
        log.warning("a batch of %d failed with %s; trying one by one", len(observations), type(error).__name__)
        return [run_batch(policy, info, [observation])[0] for observation in observations]
    return [_check(result, info) for result in results]


def _check(result: object, info: PolicyInfo) -> Outcome | Problem:
    if isinstance(result, Exception):
        return _as_problem(result)
    if not isinstance(result, ActionChunk):
        return _as_problem(_InvalidOutput(f"the policy returned a {type(result).__name__}; expected an ActionChunk"))
    try:
        check_actions(result.actions, info.action_size, info.horizon)  # again: the array may have changed
    except ValueError as error:
        return _as_problem(_InvalidOutput(f"the policy's {error}"))
    return Outcome(result)


def _as_problem(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, InvalidObservation):
        problem = Problem("invalid-observation", str(error))
    elif isinstance(error, UnknownSession):
        problem = Problem("session-lost", str(error))
    elif isinstance(error, PolicyLost):
        log.error("%s", error)
        problem = Problem.retry_after("policy-lost", str(error), 2.0)
    elif isinstance(error, _InvalidOutput):
        log.error("%s", error)
        problem = Problem("invalid-action", f"{error}; no action was sent; see the policy's log")
    else:
        log.error("the policy failed", exc_info=error)
        detail = f"the policy raised {type(error).__name__}; the service's log has the traceback"
        problem = Problem("policy-failed", detail)
    problem.__cause__ = error
    return problem


def warm_up(policy: Policy, info: PolicyInfo) -> None:
    """Run one inference on the policy's own example, or black images and zeros. Raises the problem it ends with.

    A policy that needs privileged state and has no `example()` gets none: that is logged.
    """
    observation = policy.example()
    if observation is None and info.needs_privileged:
        log.info("policy %s needs privileged state and has no example(); no warm inference", info.name)
        return
    if observation is None:
        height, width = info.image_hw or (_SIDE, _SIDE)
        observation = Observation(
            images={camera: np.zeros((height, width, 3), np.uint8) for camera in info.cameras},
            state=np.zeros(info.state_size, np.float32) if info.needs_state else None,
            instruction="warm up",
            session="warm-up",
            step=0,
            unnorm_key=info.unnorm_keys[0] if info.unnorm_keys else None,
        )
    outcome = run_batch(policy, info, [observation])[0]
    policy.reset(observation.session)
    if not isinstance(outcome, Outcome):
        raise outcome
