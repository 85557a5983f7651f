"""Embodiments as data: how a robot's cameras, state and action are named in GR00T N1.5 and in the contract.

Source for LIBERO: Isaac-GR00T at 4af2b622, examples/Libero: custom_data_config.py, modality.json, eval/.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from vla_contract.protocol.errors import did_you_mean
from vla_contract.protocol.parts import GRIPPER_OPENS, HAND_STATE, OSC_POSE, Part

HORIZON = 16  # actions in a chunk: N1.5 was trained so


@dataclass(frozen=True)
class Embodiment:
    """One robot as a checkpoint knows it.

    tag        upstream's embodiment tag: which statistics and which projector of the checkpoint are used
    config     name of upstream's data configuration whose transforms are taken; keys below replace its own
    cameras    the contract's camera name -> upstream's, in the order the model sees them; pictures are to be sent as
               the training data had them (LIBERO: 256 × 256, both turned by 180°, not cropped)
    state      upstream's names in the order in which the contract's state vector holds them
    action     upstream's names in the order in which the numbers of an action are given
    language   upstream's key of the instruction
    mean_std   action names that were normalised by mean and standard deviation instead of minimum and maximum
    gripper    the gripper's numbers in words
    action_parts, state_parts    what the numbers mean; empty: known is only that they are as the training data has them
    denoising_steps              Euler steps of the action's flow, as upstream serves this embodiment
    """

    name: str
    tag: str
    config: str
    cameras: Mapping[str, str]
    state: tuple[str, ...]
    action: tuple[str, ...]
    language: str
    gripper: str
    denoising_steps: int = 4
    mean_std: tuple[str, ...] = field(default=())
    action_parts: tuple[Part, ...] = ()
    state_parts: tuple[Part, ...] = ()


_ARM = ("x", "y", "z", "roll", "pitch", "yaw")  # roll, pitch, yaw hold an axis-angle, despite their names
_LIBERO = {
    "tag": "new_embodiment",
    "config": "so100",  # LIBERO's transforms: minimum and maximum throughout, pictures cropped by 0.95 and jittered
    "cameras": MappingProxyType({"agentview": "image", "robot0_eye_in_hand": "wrist_image"}),
    "state": (*_ARM, "gripper"),  # the last has both finger joints
    "action": (*_ARM, "gripper"),
    "language": "annotation.human.action.task_description",
    "action_parts": (*OSC_POSE, GRIPPER_OPENS),  # its client turns 1 - 2 * g into a sign: the same as OpenVLA's
    "state_parts": HAND_STATE,
    "gripper": "[0, 1], 1 = open",
    "denoising_steps": 8,
}

EMBODIMENTS: Mapping[str, Embodiment] = MappingProxyType(
    {
        one.name: one
        for one in (
            Embodiment(name="libero", **_LIBERO),
            Embodiment(name="libero_mean_std", **{**_LIBERO, "mean_std": _ARM}),
            Embodiment(
                name="oxe_droid",
                tag="oxe_droid",
                config="oxe_droid",
                cameras=MappingProxyType(
                    {name: name for name in ("exterior_image_1", "exterior_image_2", "wrist_image")}
                ),
                state=("eef_position", "eef_rotation", "gripper_position"),
                action=("eef_position_delta", "eef_rotation_delta", "gripper_position"),
                language="annotation.language.language_instruction",
                gripper="0 or 1, as in DROID's data",
            ),
        )
    }
)


def embodiment(name: str) -> Embodiment:
    """Returns the embodiment called `name`. Raises ValueError, with the nearest name, when there is none."""
    if name not in EMBODIMENTS:
        raise ValueError(f"embodiment {name!r} not found{did_you_mean(name, EMBODIMENTS)}")
    return EMBODIMENTS[name]
