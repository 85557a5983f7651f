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
    actions = []
    for level in (0, 255):
        try:
            chunk = policy.act([example(level)])[0]
        except ValueError as error:  # ActionChunk rejects NaN and infinity
            problem = f"the test inference gave an invalid action: {error}"
            raise CheckpointError(f"{problem}; the weights are damaged") from error
        if isinstance(chunk, Exception):
            raise CheckpointError(f"the test inference failed: {chunk}") from chunk
        actions.append(chunk.actions)
    policy.reset(example(0).session)
    if np.array_equal(*actions):
        raise CheckpointError(
            f"a black and a white image both give the action {actions[0][0].tolist()}: the model does not see its "
            "image; the weights are damaged or their config.json is another model's: download them again"
        )
