"""The arm that robosuite 1.4.1 has, beside that of 1.4.0, which is installed here and is LIBERO's own pin.

The two differ in models/assets/robots/panda/robot.xml alone: 1.4.1 gives link 7 a collision shape of its mesh. Imports
MuJoCo: import it only after `runtime.configure`.
"""

import xml.etree.ElementTree as ET

from libero.libero.envs.robots import MountedPanda, OnTheGroundPanda
from robosuite.robots import ROBOT_CLASS_MAPPING
from robosuite.robots.single_arm import SingleArm

PANDAS = {"": "Panda", "robosuite-1.4.1": "Panda141"}  # what a profile calls an arm → what LIBERO's problems are given
LINK, SHAPE = "link7", "link7_collision"


def panda(robot: str) -> str:
    """Returns the robot's name for LIBERO's problems. Raises ValueError for one that is not known."""
    if robot not in PANDAS:
        known = ", ".join(name for name in PANDAS if name)
        raise ValueError(
            f"robot {robot!r} not found; known: {known}, and none named for that of the installed robosuite"
        )
    return PANDAS[robot]


class _Link7:
    """A robot model whose link 7 collides. robosuite calls this method when it has read the file and nothing else."""

    def resolve_asset_dependency(self):
        super().resolve_asset_dependency()
        body = self.worldbody.find(f".//body[@name='{LINK}']")
        place = max(number for number, part in enumerate(body) if part.tag == "geom") + 1  # behind what is seen of it
        body.insert(place, ET.Element("geom", type="mesh", group="0", mesh=LINK, name=SHAPE))


class MountedPanda141(_Link7, MountedPanda):
    """LIBERO's arm on a stand, as robosuite 1.4.1 has it."""


class OnTheGroundPanda141(_Link7, OnTheGroundPanda):
    """LIBERO's arm on the floor, as robosuite 1.4.1 has it."""


ROBOT_CLASS_MAPPING.update(dict.fromkeys((MountedPanda141.__name__, OnTheGroundPanda141.__name__), SingleArm))
