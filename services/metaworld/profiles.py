"""Evaluation protocols of Meta-World as data.

Profile `lerobot` is LeRobot's adapter (src/lerobot/envs/metaworld.py of lerobot@7427f318) and the ten episodes per task
recommended by its documentation: one camera at 480 pixels, upright, at most 500 steps, ending when the task is solved.
One difference: LeRobot samples an episode's start from its seed; here episodes 0 to 49 start from metaworld's fifty
variations. `--trials 50` uses all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from services.metaworld.tasks import SUITES
from vla_evaluation.profiles import Profile

MAX_STEPS = MappingProxyType(dict.fromkeys(SUITES, 500))  # metaworld's max_path_length

LEROBOT = Profile(
    name="lerobot",
    source="lerobot@7427f318 src/lerobot/envs/metaworld.py",
    max_steps=MAX_STEPS,
    trials=10,
    camera_size=480,
    upright=True,
    image_size=480,
    simulator=MappingProxyType({"metaworld": "3.1.1", "mujoco": "3.3.0"}),
)

# This project's own: images as in the data sets of `./lab dataset`, half of each chunk of 16 executed.
MINIVLA = Profile(
    name="minivla",
    source="services/minivla",
    max_steps=MAX_STEPS,
    trials=10,
    execute=8,
    camera_size=128,
    upright=True,
    image_size=128,
)

PROFILES: Mapping[str, Profile] = MappingProxyType({"lerobot": LEROBOT, "minivla": MINIVLA})
