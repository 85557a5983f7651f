"""Random light and camera for demonstrations (`record --vary light,camera`). Imports MuJoCo.

The agentview camera moves as in LIBERO-plus; lights change brightness and position. The values follow from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import numpy as np

from services.libero.simulator import plus, plus_scenes

VARIATIONS = ("light", "camera")
DEGREES = {"azimuth": 20, "elevation": 10, "pan": 4, "tilt": 4}  # at most, either way
DISTANCE = (0.9, 1.15)
BRIGHTNESS, SHIFT_M = (0.4, 1.4), 1.0  # factor of the diffuse light; of a light's position, in each direction


def apply(model: Any, what: Collection[str], seed: int) -> None:
    """Change the lights and the agentview camera of a model that has its own ones."""
    rng = random.Random(f"variation {seed}")  # of other numbers than the start of that seed
    if "camera" in what:
        degrees = {name: rng.randint(-limit, limit) for name, limit in DEGREES.items()}
        disturbance = plus.Disturbance(distance=rng.uniform(*DISTANCE), **degrees)
        camera = model.camera(plus_scenes.CAMERA).id
        pose = plus_scenes.move_camera(model.cam_pos[camera], model.cam_quat[camera], disturbance)
        model.cam_pos[camera], model.cam_quat[camera] = pose
    if "light" in what:
        model.light_diffuse[:] *= rng.uniform(*BRIGHTNESS)
        shifts = [rng.uniform(-SHIFT_M, SHIFT_M) for _ in range(model.light_pos.size)]
        model.light_pos[:] += np.reshape(shifts, model.light_pos.shape)
