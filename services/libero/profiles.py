"""Evaluation protocols of LIBERO as data, each with its upstream files.

openvla       openvla at c8f03f48, experiments/robot/libero/run_libero_eval.py, with the image processing of
              libero_utils.py and openvla_utils.py
openvla-oft   openvla-oft at 213c5ff8, the same three files and prismatic/vla/constants.py
openvla-oft-server  the same for its vla-scripts/deploy.py, which crops the images itself
groot-n1.5    Isaac-GR00T at 4af2b622 (branch n1.5-release), examples/Libero/eval/run_libero_eval.py and utils.py
openpi        openpi at 15a9616a, examples/libero/main.py, with image_tools.py of its packages/openpi-client
lerobot       lerobot at 7427f318, src/lerobot: scripts/lerobot_eval.py, envs/libero.py, envs/configs.py,
              configs/eval.py and processor/env_processor.py; run as in docs/source/libero.mdx, with one environment
vla-eval      the package vla-eval 0.8.0, vla_eval/benchmarks/libero/benchmark.py
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from services.libero.simulator.suites import SUITES
from vla_contract.protocol.parts import GRIPPER_CLOSES, GRIPPER_OPENS, HAND_STATE, OSC_POSE
from vla_evaluation.profiles import Profile, PublishedResult

TWO_CAMERAS = ("agentview", "robot0_eye_in_hand")
# MuJoCo 3.2.3 with robosuite 1.4.0 gave OpenVLA's average (76.2 % against 76.5 % published); 3.3.3 and later render
# LIBERO's floors darker, which costs 20 points on libero_object.
ARM_141 = "robosuite-1.4.1"  # services/libero/simulator/robots.py; otherwise that robosuite equals 1.4.0
SIMULATOR = MappingProxyType({"mujoco": "3.2.3", "robosuite": "1.4.0", "hf-libero": "0.1.4", "bddl": "1.0.1"})


def _percent(spatial: float, obj: float, goal: float, ten: float) -> Mapping[str, float]:
    return MappingProxyType(dict(zip(SUITES[:4], (spatial, obj, goal, ten), strict=True)))


_PUBLISHED = (
    PublishedResult(
        "OpenVLA 7B, fine-tuned per suite", "arXiv:2406.09246", "3 seeds x 500", _percent(84.7, 88.4, 79.2, 53.7), True
    ),
    PublishedResult("OpenVLA-OFT", "arXiv:2502.19645", "500", _percent(97.6, 98.4, 97.9, 94.5)),
    PublishedResult("pi0.5", "openpi, examples/libero", "500", _percent(98.8, 98.2, 98.0, 92.4)),
    PublishedResult("GR00T N1.5", "Isaac-GR00T, examples/Libero", "5 per task", _percent(92.0, 92.0, 86.0, 76.0)),
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

# Images are only rotated by 180°: utils.py neither compresses nor resizes them. Only the first action of a chunk of 16
# is executed.
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
    cameras=TWO_CAMERAS,
    state=HAND_STATE,
    action=(*OSC_POSE, GRIPPER_OPENS),  # utils.py: 1 − 2g and its sign
    camera_size=256,
    rotate_180=True,
    image_size=256,
    # settings of its server, and the prompt that results from its client's list
    details=MappingProxyType({"denoising_steps": "8", "prompt": "upstream"}),
    simulator=MappingProxyType({"robosuite": "1.4.0"}),  # the only version in README.md
    published=(
        PublishedResult(
            "GR00T N1.5, fine-tuned per suite",
            "Isaac-GR00T, examples/Libero",
            "5 per task",
            MappingProxyType({**_percent(92.0, 92.0, 86.0, 76.0), "libero_90": 89.3}),
            True,
        ),
    ),
)

# Images are rotated by 180° and resized by Pillow, without JPEG. Five actions of every chunk are executed
# (replan_steps), whatever its length; the environment is seeded with 7 once per task.
OPENPI = Profile(
    name="openpi",
    source="openpi@15a9616a examples/libero/main.py",
    max_steps=OPENVLA.max_steps,  # the same five numbers
    wait_steps=10,
    wait_action=(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0),
    trials=50,
    execute=5,
    env_seed=7,
    cameras=TWO_CAMERAS,
    state=HAND_STATE,
    action=(*OSC_POSE, GRIPPER_CLOSES),  # executed unchanged
    camera_size=256,
    rotate_180=True,
    image_size=224,
    resize="bilinear-pad",
    robot=ARM_141,  # examples/libero/requirements.txt: robosuite 1.4.1
    simulator=MappingProxyType({"mujoco": "3.2.3", "robosuite": "1.4.0"}),
    published=(
        PublishedResult(
            "pi0.5, fine-tuned on all four suites",
            "openpi, examples/libero",
            "500",
            _percent(98.8, 98.2, 98.0, 92.4),
            True,
        ),
    ),
)

# Like OpenVLA's loop, with a second camera processed the same way (resize_image_for_policy, center_crop_image), the
# robot's state, and all eight actions of a chunk executed (num_open_loop_steps, NUM_ACTIONS_CHUNK).
OPENVLA_OFT = replace(
    OPENVLA,
    name="openvla-oft",
    source="openvla-oft@213c5ff8 experiments/robot/libero/run_libero_eval.py",
    execute=8,
    cameras=TWO_CAMERAS,  # num_images_in_input
    state=HAND_STATE,  # use_proprio
    action=(*OSC_POSE, GRIPPER_OPENS),  # process_action
    robot=ARM_141,  # libero_requirements.txt: robosuite 1.4.1, the only version
    simulator=MappingProxyType({"robosuite": "1.4.0"}),
    published=(
        PublishedResult(
            "OpenVLA-OFT, fine-tuned per suite",
            "arXiv:2502.19645",
            "3 seeds x 500",
            _PUBLISHED[1].success_percent,
            True,
        ),
    ),
)

# The server of the same model: prepare_images_for_vla crops there, so the client must not.
OPENVLA_OFT_SERVER = replace(
    OPENVLA_OFT,
    name="openvla-oft-server",
    source="openvla-oft@213c5ff8 vla-scripts/deploy.py",
    crop_area=None,
)

# Images rotated by 180° (LiberoProcessorStep), and all actions of a chunk executed (n_action_steps). The environment
# resets once when created, unseeded, and is seeded with 1000 + k before episode k.
LEROBOT = Profile(
    name="lerobot",
    source="lerobot@7427f318 src/lerobot/scripts/lerobot_eval.py",
    max_steps=MappingProxyType({**OPENVLA.max_steps, "libero_spatial": 280}),  # TASK_SUITE_MAX_STEPS
    wait_steps=10,
    wait_action=(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0),
    trials=10,
    env_seed=1000,
    seed_each=True,
    extra_resets=1,
    cameras=TWO_CAMERAS,
    state=HAND_STATE,
    action=(*OSC_POSE, GRIPPER_CLOSES),
    camera_size=360,  # envs/configs.py
    rotate_180=True,
    image_size=360,
    simulator=MappingProxyType({"mujoco": "3.8.1", "robosuite": "1.4.0", "hf-libero": "0.1.4"}),  # uv.lock
    published=(
        # Not comparable with a run: it is from October 2025 (abde7be3b), when all episodes of a task in one environment
        # started at init state 0; since 5eba4ce6 (February 2026) episode k starts at init state k.
        PublishedResult(
            "pi0.5 (LeRobot)", "lerobot, docs/source/libero.mdx", "10 per task", _percent(97.0, 99.0, 98.0, 96.0)
        ),
    ),
)
# The sizes of its policies' and the lab's training data sets: --env.observation_height=256 --env.observation_width=256.
LEROBOT_SIZES = {
    f"lerobot-{size}": replace(LEROBOT, name=f"lerobot-{size}", camera_size=size, image_size=size)
    for size in (64, 128, 256)
}

# Observations for a model server of vla-eval, which processes images and executes chunks itself.
VLA_EVAL = Profile(
    name="vla-eval",
    source="vla-eval 0.8.0 vla_eval/benchmarks/libero/benchmark.py",
    max_steps=OPENVLA.max_steps,  # MAX_STEP_MAPPING
    wait_steps=10,
    wait_action=(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0),
    trials=50,
    env_seed=7,
    action=(*OSC_POSE, GRIPPER_CLOSES),
    camera_size=256,
    rotate_180=True,
    image_size=256,
)

# This project's own: images as in the data sets of `./lab dataset`, half of each chunk of 16 executed.
MINIVLA = Profile(
    name="minivla",
    source="services/minivla",
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
    {
        "openvla": OPENVLA,
        "openvla-oft": OPENVLA_OFT,
        "openvla-oft-server": OPENVLA_OFT_SERVER,
        "groot-n1.5": GROOT,
        "openpi": OPENPI,
        "lerobot": LEROBOT,
        **LEROBOT_SIZES,
        "vla-eval": VLA_EVAL,
        "minivla": MINIVLA,
    }
)
