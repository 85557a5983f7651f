"""LIBERO-plus's changes to a scene: camera pose, surroundings and added objects.

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

CAMERA = "agentview"  # the only camera that moves
PIVOT = np.array([0.0, 0.0, 0.8])  # centre of the camera's motion, in metres


def register() -> None:
    """Register LIBERO-plus's objects and textures with LIBERO; idempotent."""
    for category, model in plus.objects().items():
        added = type(category.title().replace("_", ""), (_Added,), {"category": category, "model": model})
        OBJECTS_DICT.setdefault(category, added)
    for kind, files in plus.styles().items():
        for style, name in files.items():
            STYLE_MAPPING[kind].setdefault(style, name)


def options(task) -> dict:
    """Return the arguments of LIBERO's problems for the scene of a LIBERO-plus task."""
    scene = plus.scene_of(task.written())
    if scene is None:
        return {}
    settings = {"scene_properties": {"floor_style": scene.floor_style, "wall_style": scene.wall_style}}
    return {**settings, "scene_xml": scene.xml} if scene.xml else settings


def seen_from_elsewhere(problem: type, disturbance: plus.Disturbance) -> type:
    """Return a subclass of a LIBERO problem with LIBERO-plus's pose of the agentview camera.

    Without a camera perturbation the pose is LIBERO's rounded to four digits, which is visible in images.
    """

    def _setup_camera(self, mujoco_arena):
        problem._setup_camera(self, mujoco_arena)
        camera = mujoco_arena.worldbody.find(f".//camera[@name='{CAMERA}']")
        pos, quat = (string_to_array(camera.get(name)) for name in ("pos", "quat"))
        pos, quat = move_camera(pos, quat, disturbance)
        mujoco_arena.set_camera(camera_name=CAMERA, pos=pos, quat=quat)

    return type(problem.__name__, (problem,), {"_setup_camera": _setup_camera, "__module__": __name__})


def move_camera(
    pos: np.ndarray, quat_wxyz: np.ndarray, disturbance: plus.Disturbance
) -> tuple[list[float], list[float]]:
    """Return a camera's position (m) and quaternion (w, x, y, z) after LIBERO-plus's steps, each rounded as there.

    The steps: elevation about the pivot's y axis, azimuth about the world's z axis, distance, then pan and tilt.
    """
    if disturbance.elevation:
        turn = _axis_rotation("y", -disturbance.elevation)
        pos = _round(turn.apply(np.array(pos) - PIVOT) + PIVOT)
        quat_wxyz = _turned(quat_wxyz, turn)
    turn = _axis_rotation("z", disturbance.azimuth)
    pos = _round(turn.apply(pos))
    quat_wxyz = _turned(quat_wxyz, turn)
    if disturbance.distance != 1.0:
        pos = _round(PIVOT + (np.array(pos) - PIVOT) * disturbance.distance)
    if disturbance.pan:
        quat_wxyz = _turned(quat_wxyz, _axis_rotation("z", disturbance.pan))
    if disturbance.tilt:
        quat_wxyz = _turned(quat_wxyz, _axis_rotation("y", -disturbance.tilt))
    return list(pos), list(quat_wxyz)


def _axis_rotation(axis: str, degrees: float) -> Rotation:
    from scipy.spatial.transform import Rotation  # imported where used: workers start sooner, few move a camera

    if axis == "z":
        return Rotation.from_euler("z", degrees, degrees=True)
    return Rotation.from_rotvec(np.radians(degrees) * np.array([0.0, 1.0, 0.0]))


def _turned(quat_wxyz, turn: Rotation) -> list[float]:
    w, x, y, z = quat_wxyz
    x, y, z, w = (turn * turn.from_quat([x, y, z, w])).as_quat()
    return _round([w, x, y, z])


def _round(values) -> list[float]:
    return [round(float(value), 4) for value in values]


class _Added(MujocoXMLObject):
    """A LIBERO-plus object: free-moving, in the orientation of its model."""

    model = ""  # its file below the asset directory

    def __init__(self, name: str = "", obj_name: str = ""):
        path = Path(runtime.active().assets) / self.model
        free = [{"type": "free", "damping": "0.0005"}]
        super().__init__(str(path), name=name, joints=free, obj_type="all", duplicate_collision_geoms=False)
        self.category_name = type(self).category
        self.object_properties = {"vis_site_names": {}}
        self.rotation = {"x": (-np.pi / 2, -np.pi / 2), "y": (-np.pi, -np.pi), "z": (np.pi, np.pi)}
        self.rotation_axis = None

    def _get_object_subtree(self):
        """Like robosuite's, but also for a model whose body `object` has no parent body."""
        outer = self.worldbody
        top = outer.find("./body[@name='object']")
        if top is None or outer.find("./body/body[@name='object']") is not None:
            return super()._get_object_subtree()
        wrapper = ET.Element("worldbody")
        ET.SubElement(wrapper, "body").append(top)
        self.worldbody = wrapper
        try:
            return super()._get_object_subtree()
        finally:
            self.worldbody = outer
