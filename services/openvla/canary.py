"""The check before a service calls itself ready: does the model look at its picture?

A broken vision path (another transformers version, a damaged file) answers the same whatever it is shown, and nothing
else would tell.
"""

from __future__ import annotations

import numpy as np

from services.openvla.errors import CheckpointError
from services.openvla.facts import CAMERA
from vla_contract import Observation, Policy

INSTRUCTION = "pick up the bowl and place it on the plate"
SESSION = "canary"


def check(policy: Policy) -> None:
    """Raises CheckpointError unless a black and a white picture give different and finite actions."""
    info = policy.info()
    side, key = int(info.details["image_size"]), info.unnorm_keys[0]
    actions = []
    for step, level in enumerate((0, 255)):
        picture = np.full((side, side, 3), level, np.uint8)
        asked = Observation({CAMERA: picture}, None, INSTRUCTION, SESSION, step, unnorm_key=key)
        actions.append(_answer(policy, asked))
    policy.reset(SESSION)
    if np.array_equal(*actions):
        raise CheckpointError(
            f"a black and a white picture both give the action {actions[0].tolist()}: the model does not see its "
            "picture; the weights are damaged or their config.json is another model's: download them again"
        )


def _answer(policy: Policy, asked: Observation) -> np.ndarray:
    """Returns the action [7]."""
    try:
        chunk = policy.act([asked])[0]
    except ValueError as error:  # an ActionChunk is checked when it is made: NaN and infinity end here
        raise CheckpointError(f"the canary's answer is no action: {error}; the weights are damaged") from error
    if isinstance(chunk, Exception):
        raise CheckpointError(f"the canary's answer is no action: {chunk}") from chunk
    return chunk.actions[0]
