"""The first inference, on a made-up observation, before a service calls itself ready."""

import logging

import numpy as np

from vla_contract.protocol.info import PolicyInfo
from vla_contract.protocol.types import Observation, Policy
from vla_contract.server.outcomes import Outcome, run_batch

log = logging.getLogger("vla_contract")
SESSION = "warm-up"
_SIDE = 224  # pixels


def warm_up(policy: Policy, info: PolicyInfo) -> None:
    """Runs one inference and forgets it. Raises the problem it ends with.

    A policy that asks for privileged state and gives no `example()` cannot be warmed: that is logged.
    """
    observation = example(policy, info)
    if observation is None:
        log.info("policy %s asks for privileged state and has no example(); no warm inference", info.name)
        return
    outcome = run_batch(policy, info, [observation])[0]
    policy.reset(observation.session)
    if not isinstance(outcome, Outcome):
        raise outcome


def example(policy: Policy, info: PolicyInfo) -> Observation | None:
    """Returns the policy's own example, or black pictures and zeros of the kind that `info` asks for."""
    if (own := policy.example()) is not None:
        return own
    if info.needs_privileged:
        return None
    height, width = info.image_hw or (_SIDE, _SIDE)
    return Observation(
        images={camera: np.zeros((height, width, 3), np.uint8) for camera in info.cameras},
        state=np.zeros(info.state_size, np.float32) if info.needs_state else None,
        instruction="warm up",
        session=SESSION,
        step=0,
        unnorm_key=info.unnorm_keys[0] if info.unnorm_keys else None,
    )
