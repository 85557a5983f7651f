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
from functools import partial
from types import MappingProxyType

from services.libero.simulator.suites import SUITES
from vla_contract.protocol.parts import GRIPPER_CLOSES, GRIPPER_OPENS, HAND_STATE, OSC_POSE
from vla_evaluation.profiles import Profile, PublishedResult, Reproduction

TWO_CAMERAS = ("agentview", "robot0_eye_in_hand")
# MuJoCo 3.2.3 with robosuite 1.4.0 gave OpenVLA's average (76.2 % against 76.5 % published); 3.3.3 and later render
# LIBERO's floors darker, which costs 20 points on libero_object.
ARM_141 = "robosuite-1.4.1"  # services/libero/simulator/robots.py; otherwise that robosuite equals 1.4.0
SIMULATOR = MappingProxyType({"mujoco": "3.2.3", "robosuite": "1.4.0", "hf-libero": "0.1.4", "bddl": "1.0.1"})


def _percent(spatial: float, obj: float, goal: float, ten: float) -> Mapping[str, float]:
    return MappingProxyType(dict(zip(SUITES[:4], (spatial, obj, goal, ten), strict=True)))


_PI05, _SMOLVLA = "dbf8a3f794a9c4297b44f40b752712f50073d945", "6721902bc4d61e50a3bfdb11dfb4cb626f05d102"  # commits
RUN_OPENVLA = Reproduction("openvla", "openvla", "--suite {suite}")
RUN_OFT = Reproduction("openvla-oft", "openvla", "--suite {suite} --oft", directory="openvla-7b-oft-finetuned-{dashed}")
RUN_GROOT = Reproduction("gr00t", "gr00t", "--suite {suite}", settings={"PROMPT": "upstream", "DENOISING_STEPS": "8"})
RUN_PI05 = Reproduction(
    "pi05",
    "lerobot",
    f"--repo lerobot/pi05_libero_finetuned_v044 --revision {_PI05}",
    "pi05_libero_finetuned_v044",
    flags=("--execute", "10"),
    differs="published: all episodes of a task start at init state 0",
)
RUN_SMOLVLA = Reproduction(
    "smolvla",
    "lerobot",
    f"--repo HuggingFaceVLA/smolvla_libero --revision {_SMOLVLA}",
    "smolvla_libero",
    differs="the paper names neither its checkpoint nor its loop; this is LeRobot's for both",
)

OPENVLA_PERCENT, OFT_PERCENT = _percent(84.7, 88.4, 79.2, 53.7), _percent(97.6, 98.4, 97.9, 94.5)
PI05_PERCENT, GROOT_PERCENT = _percent(98.8, 98.2, 98.0, 92.4), _percent(92.0, 92.0, 86.0, 76.0)
OTHERS = (
    PublishedResult("OpenVLA-OFT", "arXiv:2502.19645", "500", OFT_PERCENT),
    PublishedResult("pi0.5", "openpi, examples/libero", "500", PI05_PERCENT),
    PublishedResult("GR00T N1.5", "Isaac-GR00T, examples/Libero", "5 per task", GROOT_PERCENT),
)

_profile = partial(  # what the loops have in common: OpenVLA's step limits, openpi's and vla-eval's too
    Profile,
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
    rotate_180=True,
)

OPENVLA = _profile(
    name="openvla",
    source="openvla@c8f03f48 experiments/robot/libero/run_libero_eval.py",
    trials=50,
    camera_size=256,
    jpeg_quality=95,
    image_size=224,
    crop_area=0.9,
    unnorm_keys=("{suite}", "{suite}_no_noops"),
    simulator=SIMULATOR,
    published=(
        PublishedResult(
            "OpenVLA 7B, fine-tuned per suite",
            "arXiv:2406.09246",
            "3 seeds x 500",
            OPENVLA_PERCENT,
            True,
            150,
            RUN_OPENVLA,
        ),
        *OTHERS,
    ),
)

# Images are only rotated by 180°: utils.py neither compresses nor resizes them. Only the first action of a chunk of 16
# is executed.
GROOT = _profile(
    name="groot-n1.5",
    source="Isaac-GR00T@4af2b622 examples/Libero/eval/run_libero_eval.py",
    max_steps=MappingProxyType(
        {"libero_spatial": 220, "libero_object": 280, "libero_goal": 600, "libero_10": 1000, "libero_90": 400}
    ),
    trials=5,
    execute=1,
    cameras=TWO_CAMERAS,
    state=HAND_STATE,
    action=(*OSC_POSE, GRIPPER_OPENS),  # utils.py: 1 − 2g and its sign
    camera_size=256,
    image_size=256,
    # settings of its server, and the prompt that results from its client's list
    details=MappingProxyType({"denoising_steps": "8", "prompt": "upstream"}),
    simulator=MappingProxyType({"robosuite": "1.4.0"}),  # the only version in README.md
    published=(
        PublishedResult(
            "GR00T N1.5, fine-tuned per suite",
            "Isaac-GR00T, examples/Libero",
            "5 per task",
            MappingProxyType({**GROOT_PERCENT, "libero_90": 89.3}),
            True,
            5,
            RUN_GROOT,
        ),
    ),
)

# Images are rotated by 180° and resized by Pillow, without JPEG. Five actions of every chunk are executed
# (replan_steps), whatever its length; the environment is seeded with 7 once per task.
OPENPI = _profile(
    name="openpi",
    source="openpi@15a9616a examples/libero/main.py",
    trials=50,
    execute=5,
    env_seed=7,
    cameras=TWO_CAMERAS,
    state=HAND_STATE,
    action=(*OSC_POSE, GRIPPER_CLOSES),  # executed unchanged
    camera_size=256,
    image_size=224,
    resize="bilinear-pad",
    robot=ARM_141,  # examples/libero/requirements.txt: robosuite 1.4.1
    simulator=MappingProxyType({"mujoco": "3.2.3", "robosuite": "1.4.0"}),
    published=(
        PublishedResult(
            "pi0.5, fine-tuned on all four suites",
            "openpi, examples/libero",
            "500",
            PI05_PERCENT,
            True,
            50,
            Reproduction("openpi"),
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
            "OpenVLA-OFT, fine-tuned per suite", "arXiv:2502.19645", "3 seeds x 500", OFT_PERCENT, True, 150, RUN_OFT
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
LEROBOT = _profile(
    name="lerobot",
    source="lerobot@7427f318 src/lerobot/scripts/lerobot_eval.py",
    max_steps=MappingProxyType({**OPENVLA.max_steps, "libero_spatial": 280}),  # TASK_SUITE_MAX_STEPS
    trials=10,
    env_seed=1000,
    seed_each=True,
    extra_resets=1,
    cameras=TWO_CAMERAS,
    state=HAND_STATE,
    action=(*OSC_POSE, GRIPPER_CLOSES),
    camera_size=360,  # envs/configs.py
    image_size=360,
    simulator=MappingProxyType({"mujoco": "3.8.1", "robosuite": "1.4.0", "hf-libero": "0.1.4"}),  # uv.lock
    published=(
        # Not comparable with a run: it is from October 2025 (abde7be3b), when all episodes of a task in one environment
        # started at init state 0; since 5eba4ce6 (February 2026) episode k starts at init state k.
        PublishedResult(
            "pi0.5 (LeRobot)",
            "lerobot, docs/source/libero.mdx",
            "10 per task",
            _percent(97.0, 99.0, 98.0, 96.0),
            False,
            10,
            RUN_PI05,
        ),
        PublishedResult(
            "SmolVLA 0.45B", "arXiv:2506.01844", "10 per task", _percent(90.0, 96.0, 92.0, 71.0), False, 10, RUN_SMOLVLA
        ),
    ),
)
# The sizes of its policies' and the lab's training data sets: --env.observation_height=256 --env.observation_width=256.
LEROBOT_SIZES = [replace(LEROBOT, name=f"lerobot-{size}", camera_size=size, image_size=size) for size in (64, 128, 256)]

# Observations for a model server of vla-eval, which processes images and executes chunks itself.
VLA_EVAL = _profile(
    name="vla-eval",
    source="vla-eval 0.8.0 vla_eval/benchmarks/libero/benchmark.py",
    trials=50,
    env_seed=7,
    action=(*OSC_POSE, GRIPPER_CLOSES),
    camera_size=256,
    image_size=256,
)

# This project's own: images as in the data sets of `./lab dataset`, a quarter of each chunk of 16 executed.
MINIVLA = _profile(
    name="minivla",
    source="services/minivla",
    trials=10,
    execute=4,
    camera_size=128,
    image_size=128,
)

_EVERY = (OPENVLA, OPENVLA_OFT, OPENVLA_OFT_SERVER, GROOT, OPENPI, LEROBOT, *LEROBOT_SIZES, VLA_EVAL, MINIVLA)
PROFILES: Mapping[str, Profile] = MappingProxyType({profile.name: profile for profile in _EVERY})
