"""The check before a service calls itself ready: does the model look at its pictures?

A broken vision path (another transformers version, a damaged file) answers the same whatever it is shown, and nothing
else would tell.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vla_contract import Observation, Policy
from vla_modelkit.checkpoint import CheckpointError


def check_sees(policy: Policy, example: Callable[[int], Observation]) -> None:
    """Raises CheckpointError unless black and white pictures give different and finite actions.

    example: grey level (0 to 255) -> an observation whose pictures have it.
    """
    black, white = (_answer(policy, example(level)) for level in (0, 255))
    policy.reset(example(0).session)
    if np.array_equal(black, white):
        raise CheckpointError(
            f"a black and a white picture both give the action {black[0].tolist()}: the model does not see its "
            "picture; the weights are damaged or their config.json is another model's: download them again"
        )


def _answer(policy: Policy, asked: Observation) -> np.ndarray:
    """Returns the actions [T, n]."""
    try:
        chunk = policy.act([asked])[0]
    except ValueError as error:  # an ActionChunk is checked when it is made: NaN and infinity end here
        raise CheckpointError(f"the canary's answer is no action: {error}; the weights are damaged") from error
    if isinstance(chunk, Exception):
        raise CheckpointError(f"the canary's answer is no action: {chunk}") from chunk
    return chunk.actions
