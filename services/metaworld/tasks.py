"""Meta-World's fifty tasks and its suites. No simulator is imported here.

The instructions are those of LeRobot's adapter (src/lerobot/envs/metaworld_config.json of lerobot@7427f318), which data
sets and policies were made with. For reach-v3 and push-v3 they do not mention the goal's position, which is a mark in
the image. The groups by difficulty come from that file too; the others are metaworld 3.1.1's (env_dict.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from vla_contract.protocol.parts import Part

# an action and a state, as in metaworld's sawyer_xyz_env.py
ACTION = (
    Part("position delta", 3, "0.01 m", "world frame, of a body that the hand is tied to", -1, 1),
    Part("gripper", 1, "1", "-1 opens, 1 closes, with the force of what lies between", -1, 1),
)
STATE = (
    Part("position", 3, "m", "world frame"),
    Part("gripper opening", 1, "0.1 m", "distance of the fingers, at most 1", 0, 1),
)
CAMERAS = ("corner2", "topview", "corner", "corner3", "corner4", "behindGripper", "gripperPOV")  # of its scenes

INSTRUCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "assembly-v3": "Pick up a nut and place it onto a peg",
        "basketball-v3": "Dunk the basketball into the basket",
        "bin-picking-v3": "Grasp the puck from one bin and place it into another bin",
        "box-close-v3": "Grasp the cover and close the box with it",
        "button-press-topdown-v3": "Press a button from the top",
        "button-press-topdown-wall-v3": "Bypass a wall and press a button from the top",
        "button-press-v3": "Press a button",
        "button-press-wall-v3": "Bypass a wall and press a button",
        "coffee-button-v3": "Push a button on the coffee machine",
        "coffee-pull-v3": "Pull a mug from a coffee machine",
        "coffee-push-v3": "Push a mug under a coffee machine",
        "dial-turn-v3": "Rotate a dial 180 degrees",
        "disassemble-v3": "Pick a nut out of a peg",
        "door-close-v3": "Close a door with a revolving joint",
        "door-lock-v3": "Lock the door by rotating the lock clockwise",
        "door-open-v3": "Open a door with a revolving joint",
        "door-unlock-v3": "Unlock the door by rotating the lock counter-clockwise",
        "hand-insert-v3": "Insert the gripper into a hole",
        "drawer-close-v3": "Push and close a drawer",
        "drawer-open-v3": "Open a drawer",
        "faucet-open-v3": "Rotate the faucet counter-clockwise",
        "faucet-close-v3": "Rotate the faucet clockwise",
        "hammer-v3": "Hammer a screw on the wall",
        "handle-press-side-v3": "Press a handle down sideways",
        "handle-press-v3": "Press a handle down",
        "handle-pull-side-v3": "Pull a handle up sideways",
        "handle-pull-v3": "Pull a handle up",
        "lever-pull-v3": "Pull a lever down 90 degrees",
        "pick-place-wall-v3": "Pick a puck, bypass a wall and place the puck",
        "pick-out-of-hole-v3": "Pick up a puck from a hole",
        "pick-place-v3": "Pick and place a puck to a goal",
        "plate-slide-v3": "Slide a plate into a cabinet",
        "plate-slide-side-v3": "Slide a plate into a cabinet sideways",
        "plate-slide-back-v3": "Get a plate from the cabinet",
        "plate-slide-back-side-v3": "Get a plate from the cabinet sideways",
        "peg-insert-side-v3": "Insert a peg sideways",
        "peg-unplug-side-v3": "Unplug a peg sideways",
        "soccer-v3": "Kick a soccer into the goal",
        "stick-push-v3": "Grasp a stick and push a box using the stick",
        "stick-pull-v3": "Grasp a stick and pull a box with the stick",
        "push-v3": "Push the puck to a goal",
        "push-wall-v3": "Bypass a wall and push a puck to a goal",
        "push-back-v3": "Push the puck to a goal",
        "reach-v3": "Reach a goal position",
        "reach-wall-v3": "Bypass a wall and reach a goal",
        "shelf-place-v3": "Pick and place a puck onto a shelf",
        "sweep-into-v3": "Sweep a puck into a hole",
        "sweep-v3": "Sweep a puck off the table",
        "window-open-v3": "Push and open a window",
        "window-close-v3": "Push and close a window",
    }
)

_MT10 = (
    "reach push pick-place door-open drawer-open drawer-close button-press-topdown peg-insert-side window-open "
    "window-close"
)
_ML10_TRAIN = (
    "reach push pick-place door-open drawer-close button-press-topdown peg-insert-side window-open sweep basketball"
)
_ML45_TEST = "bin-picking box-close hand-insert door-lock door-unlock"
_ML45_TRAIN = (
    "assembly basketball button-press-topdown button-press-topdown-wall button-press button-press-wall coffee-button "
    "coffee-pull coffee-push dial-turn disassemble door-close door-open drawer-close drawer-open faucet-open "
    "faucet-close hammer handle-press-side handle-press handle-pull-side handle-pull lever-pull pick-place-wall "
    "pick-out-of-hole push-back pick-place plate-slide plate-slide-side plate-slide-back plate-slide-back-side "
    "peg-insert-side peg-unplug-side soccer stick-push stick-pull push-wall push reach-wall reach shelf-place "
    "sweep-into sweep window-open window-close"
)
_EASY = (
    "button-press button-press-topdown button-press-topdown-wall button-press-wall coffee-button dial-turn door-close "
    "door-lock door-open door-unlock drawer-close drawer-open faucet-close faucet-open handle-press handle-press-side "
    "handle-pull handle-pull-side lever-pull plate-slide plate-slide-back plate-slide-back-side plate-slide-side reach "
    "reach-wall window-close window-open peg-unplug-side"
)
_MEDIUM = (
    "basketball bin-picking box-close coffee-pull coffee-push hammer peg-insert-side push-wall soccer sweep sweep-into"
)
_HARD = "assembly hand-insert pick-out-of-hole pick-place push push-back"
_VERY_HARD = "shelf-place disassemble stick-pull stick-push pick-place-wall"


@dataclass(frozen=True)
class Task:
    """A task and its index in a suite; `name` is metaworld's."""

    index: int
    name: str
    instruction: str


def _suite(short_names: str) -> tuple[Task, ...]:
    names = [f"{word}-v3" for word in short_names.split()]
    return tuple(Task(index, name, INSTRUCTIONS[name]) for index, name in enumerate(names))


SUITES: Mapping[str, tuple[Task, ...]] = MappingProxyType(
    {
        "metaworld_mt10": _suite(_MT10),
        "metaworld_mt50": tuple(Task(index, *item) for index, item in enumerate(INSTRUCTIONS.items())),
        "metaworld_ml10_train": _suite(_ML10_TRAIN),
        "metaworld_ml10_test": _suite("drawer-open door-close shelf-place sweep-into lever-pull"),
        "metaworld_ml45_train": _suite(_ML45_TRAIN),
        "metaworld_ml45_test": _suite(_ML45_TEST),
        "metaworld_easy": _suite(_EASY),
        "metaworld_medium": _suite(_MEDIUM),
        "metaworld_hard": _suite(_HARD),
        "metaworld_very_hard": _suite(_VERY_HARD),
    }
)
