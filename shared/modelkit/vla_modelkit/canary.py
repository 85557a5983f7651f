"""A check before a service is ready: do the actions depend on the images?

A broken vision path (another transformers version, a damaged file) returns the same actions for every image, which
nothing else detects.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vla_contract import Observation, Policy
from vla_modelkit.checkpoint import CheckpointError


def check_sees(policy: Policy, example: Callable[[int], Observation]) -> None:
    """Raise CheckpointError unless black and white images give different, finite actions.

    example: grey level (0 to 255) -> an observation whose images have it.
    """
    black, white = (_answer(policy, example(level)) for level in (0, 255))
    policy.reset(example(0).session)
    if np.array_equal(black, white):
        raise CheckpointError(
            f"a black and a white image both give the action {black[0].tolist()}: the model does not see its "
            "image; the weights are damaged or their config.json is another model's: download them again"
        )


def _answer(policy: Policy, observation: Observation) -> np.ndarray:
    """Return the actions [T, n]."""
    try:
        chunk = policy.act([observation])[0]
    except ValueError as error:  # ActionChunk rejects NaN and infinity
        raise CheckpointError(f"the test inference gave an invalid action: {error}; the weights are damaged") from error
    if isinstance(chunk, Exception):
        raise CheckpointError(f"the test inference failed: {chunk}") from chunk
    return chunk.actions
