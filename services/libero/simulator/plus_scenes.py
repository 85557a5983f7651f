"""What LIBERO-plus changes of a scene: where the camera stands, what stands round it, and objects that LIBERO lacks.

Imports LIBERO: import it only after `runtime.configure`.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from libero.libero.envs.arenas.style import STYLE_MAPPING
from libero.libero.envs.base_object import OBJECTS_DICT
from robosuite.models.objects import MujocoXMLObject
from robosuite.utils.mjcf_utils import string_to_array

from services.libero.simulator import plus, runtime

if TYPE_CHECKING:
    from scipy.spatial.transform import Rotation

CAMERA = "agentview"  # the only one that is moved
PIVOT = np.array([0.0, 0.0, 0.8])  # what the camera is led round, in metres
AXES = {"y": np.array([0.0, 1.0, 0.0]), "z": np.array([0.0, 0.0, 1.0])}


def register() -> None:
    """Makes its objects and textures known to LIBERO; a second call changes nothing."""
    for category, model in plus.objects().items():
        OBJECTS_DICT.setdefault(category, _category(category, model))
    for kind, files in plus.styles().items():
        for style, name in files.items():
            STYLE_MAPPING[kind].setdefault(style, name)


def options(task) -> dict:
    """Returns what LIBERO's problems take for the scene that a task of LIBERO-plus names."""
    scene = plus.scene_of(task.written())
    if scene is None:
        return {}
    found = {"scene_properties": {"floor_style": scene.floor_style, "wall_style": scene.wall_style}}
    return {**found, "scene_xml": scene.xml} if scene.xml else found


def seen_from_elsewhere(problem: type, disturbance: plus.Disturbance) -> type:
    """Returns a problem of LIBERO's whose agentview stands where LIBERO-plus has it.

    Also where nothing is said of the camera: there its pose is LIBERO's rounded to four digits, which shows in a
    picture.
    """

    def _setup_camera(self, mujoco_arena):
        problem._setup_camera(self, mujoco_arena)
        camera = mujoco_arena.worldbody.find(f".//camera[@name='{CAMERA}']")
        pos, quat = (string_to_array(camera.get(name)) for name in ("pos", "quat"))
        pos, quat = moved(pos, quat, disturbance)
        mujoco_arena.set_camera(camera_name=CAMERA, pos=pos, quat=quat)

    return type(problem.__name__, (problem,), {"_setup_camera": _setup_camera, "__module__": __name__})


def moved(pos: np.ndarray, quat_wxyz: np.ndarray, how: plus.Disturbance) -> tuple[list[float], list[float]]:
    """Returns a camera's position (m) and quaternion (w, x, y, z) after LIBERO-plus's steps, each rounded as there.

    First up or down about the pivot's y axis, then round the world's z axis, then nearer or further, then turned on the
    spot.
    """
    if how.elevation:
        pos = _round(_about("y", -how.elevation).apply(np.array(pos) - PIVOT) + PIVOT)
        quat_wxyz = _turned(quat_wxyz, "y", -how.elevation)
    pos = _round(_about("z", how.azimuth).apply(pos))
    quat_wxyz = _turned(quat_wxyz, "z", how.azimuth)
    if how.distance != 1.0:
        pos = _round(PIVOT + (np.array(pos) - PIVOT) * how.distance)
    if how.pan:
        quat_wxyz = _turned(quat_wxyz, "z", how.pan)
    if how.tilt:
        quat_wxyz = _turned(quat_wxyz, "y", -how.tilt)
    return list(pos), list(quat_wxyz)


def _about(axis: str, degrees: float) -> Rotation:
    from scipy.spatial.transform import Rotation  # not above: every worker starts sooner, and few move a camera

    if axis == "z":
        return Rotation.from_euler("z", degrees, degrees=True)
    return Rotation.from_rotvec(np.radians(degrees) * AXES[axis])


def _turned(quat_wxyz, axis: str, degrees: float) -> list[float]:
    w, x, y, z = quat_wxyz
    turn = _about(axis, degrees)
    x, y, z, w = (turn * turn.from_quat([x, y, z, w])).as_quat()
    return _round([w, x, y, z])


def _round(values) -> list[float]:
    return [round(float(value), 4) for value in values]


class _Added(MujocoXMLObject):
    """An object of LIBERO-plus's: anything, lying as its model lies, that moves freely."""

    model = ""  # its file below the asset folder

    def __init__(self, name: str = "", obj_name: str = ""):
        path = Path(runtime.active().assets) / self.model
        free = [{"type": "free", "damping": "0.0005"}]
        super().__init__(str(path), name=name, joints=free, obj_type="all", duplicate_collision_geoms=False)
        self.category_name = type(self).category
        self.object_properties = {"vis_site_names": {}}
        self.rotation = {"x": (-np.pi / 2, -np.pi / 2), "y": (-np.pi, -np.pi), "z": (np.pi, np.pi)}
        self.rotation_axis = None

    def _get_object_subtree(self):
        """As robosuite has it, also for a model whose body `object` lies in no other."""
        outer = self.worldbody
        top = None if outer.find("./body/body[@name='object']") is not None else outer.find("./body[@name='object']")
        if top is None:
            return super()._get_object_subtree()
        wrapper = ET.Element("worldbody")
        ET.SubElement(wrapper, "body").append(top)
        self.worldbody = wrapper
        try:
            return super()._get_object_subtree()
        finally:
            self.worldbody = outer


def _category(category: str, model: str) -> type:
    return type(category.title().replace("_", ""), (_Added,), {"category": category, "model": model})
