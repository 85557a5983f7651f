"""Leaves out geoms that a camera cannot see, without changing a pixel.

Drawing time goes with the number of vertices, wherever they end up. A geom whose bounding sphere lies outside the
view's side planes, or behind the camera, puts no fragment into the picture. Two ways round that are kept open: MuJoCo
mirrors the scene in a reflective plane or box, so a geom's mirror image must miss the pyramid from the eye over the
mirror too; and planes and reflective geoms stay in any case, since leaving out the first would promote the second.
"""

import mujoco
import numpy as np

HIDDEN_GROUP = 5  # of MuJoCo's six geom groups; LIBERO draws group 1
_SLACK_M = 1e-3  # for the rounding of positions and planes, in metres
_PLANE, _BOX = int(mujoco.mjtGeom.mjGEOM_PLANE), int(mujoco.mjtGeom.mjGEOM_BOX)


def _reflectance(model) -> np.ndarray:
    """Returns each geom's reflectance [ngeom]; without a material it is 0."""
    material = model.geom_matid
    return (
        np.where(material >= 0, model.mat_reflectance[np.maximum(material, 0)], 0.0) if model.nmat else 0.0 * material
    )


class Culling:
    """Finds what one model's cameras cannot see."""

    def __init__(self, model: mujoco.MjModel):
        self._model = model
        shape = model.geom_type
        mirrors = (_reflectance(model) > 0) & ((shape == _PLANE) | (shape == _BOX))
        self._radius = model.geom_rbound * 1.001 + _SLACK_M
        self._keep = (model.geom_rbound <= 0) | mirrors  # a radius of 0 means endless
        self._mirrors = np.flatnonzero(mirrors)
        self._groups = model.geom_group.copy()

    def outside(self, data: mujoco.MjData, camera: int) -> np.ndarray:
        """Returns which geoms (bool [ngeom]) put nothing into `camera`'s square picture at `data`'s poses."""
        planes = _side_planes(self._model.cam_fovy[camera], data.cam_xmat[camera].reshape(3, 3))
        eye, centres = data.cam_xpos[camera], data.geom_xpos
        hidden = self._beyond(planes, centres - eye) & ~self._keep
        for geom in self._mirrors:
            if not hidden.any():
                break
            hidden &= self._unmirrored(data, geom, planes, eye)
        return hidden

    def mirrors(self, data: mujoco.MjData, camera: int) -> bool:
        """Returns whether `camera`'s picture may hold a mirror; without one the mirrored pass draws nothing."""
        planes = _side_planes(self._model.cam_fovy[camera], data.cam_xmat[camera].reshape(3, 3))
        offsets = data.geom_xpos[self._mirrors] - data.cam_xpos[camera]
        size = self._model.geom_size[self._mirrors]
        endless = (self._model.geom_type[self._mirrors] == _PLANE) & (size[:, :2] <= 0).any(axis=1)
        reach = np.linalg.norm(size, axis=1) + _SLACK_M
        return bool((endless | ((offsets @ planes.T + reach[:, None]).min(axis=1) >= 0)).any())

    def _unmirrored(self, data, geom: int, planes: np.ndarray, eye: np.ndarray) -> np.ndarray:
        """Returns which geoms have no mirror image in the view by the reflective geom `geom`."""
        mat, place, size = data.geom_xmat[geom].reshape(3, 3), data.geom_xpos[geom], self._model.geom_size[geom]
        normal = mat[:, 2]
        if self._model.geom_type[geom] == _BOX:
            place = place + size[2] * normal  # a box mirrors in its upper side
        height = (data.geom_xpos - place) @ normal
        if (eye - place) @ normal > 0 and size[0] > 0 and size[1] > 0:
            planes = np.concatenate([planes, _pyramid(eye, place, mat[:, 0] * size[0], mat[:, 1] * size[1])])
        images = data.geom_xpos - 2 * height[:, None] * normal
        return (height < -self._radius) | self._beyond(planes, images - eye)

    def _beyond(self, planes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Returns which spheres at `offsets` [n, 3] from the eye lie wholly outside one of `planes` [m, 3]."""
        return (offsets @ planes.T + self._radius[:, None]).min(axis=1) < 0

    def hide(self, hidden: np.ndarray) -> None:
        """Takes the geoms of `hidden` out of what `mjv_updateScene` draws, until `show_all`."""
        self._model.geom_group[hidden] = HIDDEN_GROUP

    def show_all(self) -> None:
        self._model.geom_group[:] = self._groups


def _side_planes(fovy_deg: float, mat: np.ndarray) -> np.ndarray:
    """Returns the inward normals [5, 3] of a square view: left, right, bottom, top, and the plane of the eye.

    `mat` is MuJoCo's camera frame: x right, y up, looking along -z.
    """
    half = np.deg2rad(fovy_deg) / 2
    cos, sin = np.cos(half), np.sin(half)
    local = np.array([[cos, 0, -sin], [-cos, 0, -sin], [0, cos, -sin], [0, -cos, -sin], [0, 0, -1]])
    return local @ mat.T


def _pyramid(eye: np.ndarray, centre: np.ndarray, across: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Returns the inward normals [4, 3] of the pyramid from `eye` over the rectangle centre ± across ± up."""
    corners = np.stack([centre + across + up, centre - across + up, centre - across - up, centre + across - up]) - eye
    normals = np.cross(corners, np.roll(corners, -1, axis=0))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    return normals * np.sign(normals @ (centre - eye))[:, None]
