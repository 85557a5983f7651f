"""Evaluation protocols of LIBERO as data.

Profile `openvla` is experiments/robot/libero/run_libero_eval.py of openvla at c8f03f48, with the picture's path through
libero_utils.py and openvla_utils.py. Profile `groot-n1.5` is examples/Libero/eval/run_libero_eval.py of Isaac-GR00T at
4af2b622 (branch n1.5-release), with utils.py beside it. Profile `openpi` is examples/libero/main.py of openpi at
15a9616a, with image_tools.py of its packages/openpi-client.
"""

from collections.abc import Mapping
from types import MappingProxyType

from services.libero.simulator.suites import SUITES
from vla_evaluation.profiles import Profile, Published

# MuJoCo 3.2.3 with robosuite 1.4.0 gave OpenVLA's average (76.2 % against 76.5 % published); 3.3.3 and later draw
# LIBERO's floors darker, which costs it 20 points on libero_object.
SIMULATOR = MappingProxyType({"mujoco": "3.2.3", "robosuite": "1.4.0", "hf-libero": "0.1.4", "bddl": "1.0.1"})


def _percent(spatial: float, obj: float, goal: float, ten: float) -> Mapping[str, float]:
    return MappingProxyType(dict(zip(SUITES[:4], (spatial, obj, goal, ten), strict=True)))


_PUBLISHED = (
    Published(
        "OpenVLA 7B, fine-tuned per suite", "arXiv:2406.09246", "3 seeds x 500", _percent(84.7, 88.4, 79.2, 53.7), True
    ),
    Published("OpenVLA-OFT", "arXiv:2502.19645", "500", _percent(97.6, 98.4, 97.9, 94.5)),
    Published("pi0.5", "openpi, examples/libero", "500", _percent(98.8, 98.2, 98.0, 92.4)),
    Published("GR00T N1.5", "Isaac-GR00T, examples/Libero", "5 per task", _percent(92.0, 92.0, 86.0, 76.0)),
)

OPENVLA = Profile(
    name="openvla",
    source="openvla@c8f03f48 experiments/robot/libero/run_libero_eval.py",
    max_steps=MappingProxyType(
        {
            "libero_spatial": 220,  # the longest training demonstration has 193 steps
            "libero_object": 280,  # 254
            "libero_goal": 300,  # 270
            "libero_10": 520,  # 505
            "libero_90": 400,  # 373
        }
    ),
    wait_steps=10,
    wait_action=(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0),  # the gripper open
    trials=50,
    camera_size=256,
    rotate_180=True,
    jpeg_quality=95,
    image_size=224,
    crop_area=0.9,
    unnorm_keys=("{suite}", "{suite}_no_noops"),
    simulator=SIMULATOR,
    published=_PUBLISHED,
)

# Pictures go as they are drawn, turned round: utils.py neither compresses nor resizes them. Of a chunk of 16 the first
# action is executed, and the policy is asked again.
GROOT = Profile(
    name="groot-n1.5",
    source="Isaac-GR00T@4af2b622 examples/Libero/eval/run_libero_eval.py",
    max_steps=MappingProxyType(
        {"libero_spatial": 220, "libero_object": 280, "libero_goal": 600, "libero_10": 1000, "libero_90": 400}
    ),
    wait_steps=10,
    wait_action=(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0),
    trials=5,
    execute=1,
    camera_size=256,
    rotate_180=True,
    image_size=256,
    # what its server has to be told, and the prompt that its client's list becomes
    details=MappingProxyType({"denoising_steps": "8", "prompt": "upstream"}),
    simulator=MappingProxyType({"robosuite": "1.4.0"}),  # README.md names no other version
    published=(
        Published(
            "GR00T N1.5, fine-tuned per suite",
            "Isaac-GR00T, examples/Libero",
            "5 per task",
            MappingProxyType({**_percent(92.0, 92.0, 86.0, 76.0), "libero_90": 89.3}),
            True,
        ),
    ),
)

# Pictures go turned round and resized by Pillow, without JPEG. Five actions of every chunk are executed (its
# replan_steps), whatever the chunk's length; the environment is seeded with 7 once per task.
OPENPI = Profile(
    name="openpi",
    source="openpi@15a9616a examples/libero/main.py",
    max_steps=OPENVLA.max_steps,  # the same five numbers
    wait_steps=10,
    wait_action=(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0),
    trials=50,
    execute=5,
    env_seed=7,
    camera_size=256,
    rotate_180=True,
    image_size=224,
    resize="bilinear-pad",
    # examples/libero/requirements.txt; robosuite 1.4.1 has one collision shape more than the 1.4.0 of LIBERO's own pins
    simulator=MappingProxyType({"mujoco": "3.2.3", "robosuite": "1.4.1"}),
    published=(
        Published(
            "pi0.5, fine-tuned on all four suites",
            "openpi, examples/libero",
            "500",
            _percent(98.8, 98.2, 98.0, 92.4),
            True,
        ),
    ),
)

# The lab's own: pictures as the data sets that `./lab dataset` makes have them, half of a chunk of 16 executed.
MINIVLA = Profile(
    name="minivla",
    source="services/ws_mdl/minivla",
    max_steps=OPENVLA.max_steps,
    wait_steps=10,
    wait_action=(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0),
    trials=10,
    execute=8,
    camera_size=128,
    rotate_180=True,
    image_size=128,
)

PROFILES: Mapping[str, Profile] = MappingProxyType(
    {"openvla": OPENVLA, "groot-n1.5": GROOT, "openpi": OPENPI, "minivla": MINIVLA}
)
