"""The arm that robosuite 1.4.1 has, beside that of 1.4.0, which is installed here and is LIBERO's own pin.

The two differ in models/assets/robots/panda/robot.xml alone: 1.4.1 gives link 7 a collision shape of its mesh. Either
starts in LIBERO-plus's postures too. Imports MuJoCo: import it only after `runtime.configure`.
"""

import xml.etree.ElementTree as ET

import numpy as np
from libero.libero.envs.robots import MountedPanda, OnTheGroundPanda
from robosuite.robots import ROBOT_CLASS_MAPPING
from robosuite.robots.single_arm import SingleArm

from services.libero.simulator import plus

PANDAS = {"": "Panda", "robosuite-1.4.1": "Panda141"}  # what a profile calls an arm → what LIBERO's problems are given
LINK, SHAPE = "link7", "link7_collision"


def panda(robot: str, posture: int = 0) -> str:
    """Returns the robot's name for LIBERO's problems; `posture` is one of LIBERO-plus's, 0 LIBERO's own.

    Raises ValueError for one that is not known.
    """
    if robot not in PANDAS:
        known = ", ".join(name for name in PANDAS if name)
        raise ValueError(
            f"robot {robot!r} not found; known: {known}, and none named for that of the installed robosuite"
        )
    name = PANDAS[robot]
    return name if posture == 0 else _posed(name, posture)


def _posed(name: str, posture: int) -> str:
    """Returns the name of that arm in another posture, which robosuite knows from then on."""
    if posture not in plus.postures():
        raise ValueError(f"posture {posture} not found; LIBERO-plus has 1 to {max(plus.postures())}, and 0 is LIBERO's")
    angles = np.array(plus.postures()[posture])
    for mount in (MountedPanda, OnTheGroundPanda, MountedPanda141, OnTheGroundPanda141):
        posed = f"{mount.__name__}Posture{posture}"
        if mount.__name__.endswith(name) and posed not in ROBOT_CLASS_MAPPING:
            # robosuite's base class enters a model's class by its name; ROBOT_CLASS_MAPPING says what drives it
            type(posed, (mount,), {"init_qpos": property(lambda _: angles.copy()), "__module__": __name__})
            ROBOT_CLASS_MAPPING[posed] = SingleArm
    return f"{name}Posture{posture}"


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
