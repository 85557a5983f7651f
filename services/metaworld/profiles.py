"""Evaluation protocols of Meta-World as data.

Profile `lerobot` is LeRobot's adapter (src/lerobot/envs/metaworld.py of lerobot@7427f318) and the ten episodes per task
that its page recommends: one camera at 480 pixels, the right way up, 500 steps, the end at the first that is solved.
Where it differs: LeRobot draws an episode's start from the episode's seed, here episodes 0 to 49 start from metaworld's
own fifty variations. `--trials 50` takes them all.
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

# The lab's own: pictures as the data sets that `./lab dataset` makes have them, half of a chunk of 16 executed.
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
