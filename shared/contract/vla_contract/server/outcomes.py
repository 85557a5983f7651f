"""Runs the policy on a batch and judges what it returns, request by request."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from vla_contract.protocol.errors import InvalidObservation, PolicyLost, UnknownSession
from vla_contract.protocol.info import PolicyInfo
from vla_contract.protocol.problems import Problem
from vla_contract.protocol.types import ActionChunk, Observation, Policy, check_actions

log = logging.getLogger("vla_contract")


@dataclass(eq=False)
class Outcome:
    """A valid chunk and what it took. `batch` is the size of the batch of which this is the first, else 0."""

    chunk: ActionChunk
    queue_s: float = 0.0
    infer_s: float = 0.0
    batch: int = 0


def run_batch(policy: Policy, info: PolicyInfo, observations: list[Observation]) -> list[Outcome | Problem]:
    """Returns one outcome or problem per observation, in order.

    Where `act` raises for several, a stateless policy is asked one by one, so that the one at fault fails
    alone. A stateful one may have moved on for some of them: all fail, and their episodes start again.
    """
    try:
        results = _act(policy, observations)
    except Exception as error:
        if len(observations) == 1 or info.stateful:
            return [_problem(error)] * len(observations)
        log.warning("a batch of %d failed with %s; asking one by one", len(observations), type(error).__name__)
        return [run_batch(policy, info, [observation])[0] for observation in observations]
    return [_judge(result, info) for result in results]


def _act(policy: Policy, observations: list[Observation]) -> Sequence:
    results = policy.act(observations)
    if not isinstance(results, (list, tuple)) or len(results) != len(observations):
        found = f"{len(results)} results" if isinstance(results, (list, tuple)) else f"a {type(results).__name__}"
        raise _InvalidOutput(f"the policy returned {found} for {len(observations)} observations")
    return results


class _InvalidOutput(Exception):
    """The policy's output breaks the contract."""


def _judge(result: object, info: PolicyInfo) -> Outcome | Problem:
    if isinstance(result, Exception):
        return _problem(result)
    if not isinstance(result, ActionChunk):
        return _problem(_InvalidOutput(f"the policy returned a {type(result).__name__}; expected an ActionChunk"))
    try:
        check_actions(result.actions, info.action_size, info.horizon)  # again: an array may have changed meanwhile
    except ValueError as error:
        return _problem(_InvalidOutput(f"the policy's {error}"))
    return Outcome(result)


def _problem(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    problem = _translate(error)
    problem.__cause__ = error
    return problem


def _translate(error: Exception) -> Problem:
    if isinstance(error, InvalidObservation):
        return Problem("invalid-observation", str(error))
    if isinstance(error, UnknownSession):
        return Problem("session-lost", str(error))
    if isinstance(error, PolicyLost):
        log.error("%s", error)
        return Problem.retry_after("policy-lost", str(error), 2.0)
    if isinstance(error, _InvalidOutput):
        log.error("%s", error)
        return Problem("invalid-action", f"{error}; no action was sent, look into the policy's log")
    log.error("the policy failed", exc_info=error)
    return Problem("policy-failed", f"the policy raised {type(error).__name__}; the service's log has the traceback")
