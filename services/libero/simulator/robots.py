"""The arm of robosuite 1.4.1, in addition to that of the installed 1.4.0, LIBERO's pinned version.

They differ only in models/assets/robots/panda/robot.xml: 1.4.1 gives link 7 its mesh as a collision shape. Both can
start in LIBERO-plus's postures. Imports MuJoCo: import it only after `runtime.configure`.
"""

import xml.etree.ElementTree as ET

import numpy as np
from libero.libero.envs.robots import MountedPanda, OnTheGroundPanda
from robosuite.robots import ROBOT_CLASS_MAPPING
from robosuite.robots.single_arm import SingleArm

from services.libero.simulator import plus

PANDAS = {"": "Panda", "robosuite-1.4.1": "Panda141"}  # name in a profile → name for LIBERO's problems
LINK, SHAPE = "link7", "link7_collision"


def panda(robot: str, posture: int = 0) -> str:
    """Return the robot's name for LIBERO's problems; `posture` is one of LIBERO-plus's, 0 LIBERO's own.

    Another posture is registered with robosuite first. Raises ValueError for an unknown robot or posture.
    """
    if robot not in PANDAS:
        names = ", ".join(name for name in PANDAS if name)
        raise ValueError(f"robot {robot!r} not found; known: {names}, or '' for that of the installed robosuite")
    name = PANDAS[robot]
    if posture == 0:
        return name
    if posture not in plus.postures():
        raise ValueError(f"posture {posture} not found; LIBERO-plus has 1 to {max(plus.postures())}, and 0 is LIBERO's")
    angles = np.array(plus.postures()[posture])
    for mount in (MountedPanda, OnTheGroundPanda, MountedPanda141, OnTheGroundPanda141):
        posed = f"{mount.__name__}Posture{posture}"
        if mount.__name__.endswith(name) and posed not in ROBOT_CLASS_MAPPING:
            # robosuite's metaclass registers the model's class by name; ROBOT_CLASS_MAPPING assigns its robot class
            type(posed, (mount,), {"init_qpos": property(lambda _: angles.copy()), "__module__": __name__})
            ROBOT_CLASS_MAPPING[posed] = SingleArm
    return f"{name}Posture{posture}"


class _Link7:
    """A robot model whose link 7 collides. robosuite calls this method right after reading the file."""

    def resolve_asset_dependency(self):
        super().resolve_asset_dependency()
        body = self.worldbody.find(f".//body[@name='{LINK}']")
        index = max(number for number, part in enumerate(body) if part.tag == "geom") + 1  # after the visual geoms
        body.insert(index, ET.Element("geom", type="mesh", group="0", mesh=LINK, name=SHAPE))


class MountedPanda141(_Link7, MountedPanda):
    """LIBERO's arm on a stand, as in robosuite 1.4.1."""


class OnTheGroundPanda141(_Link7, OnTheGroundPanda):
    """LIBERO's arm on the floor, as in robosuite 1.4.1."""


ROBOT_CLASS_MAPPING.update(dict.fromkeys((MountedPanda141.__name__, OnTheGroundPanda141.__name__), SingleArm))
