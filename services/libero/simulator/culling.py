"""Leaves out geoms that a camera cannot see, without changing a pixel.

Drawing time goes with the number of vertices, wherever they end up. A geom whose bounding box lies outside the view's
side planes, or behind the camera, puts no fragment into the picture. Two ways round that are kept open: MuJoCo mirrors
the scene in a reflective plane or box, so a geom's mirror image must miss the pyramid from the eye over the mirror too;
and endless planes and mirrors stay in any case: MuJoCo would take the next one in their stead.
"""

import mujoco
import numpy as np

HIDDEN_GROUP = 5  # of MuJoCo's six geom groups; LIBERO draws group 1
SLACK_M = 1e-3  # for the rounding of positions and planes, in metres
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
        self.endless = (shape == _PLANE) & (model.geom_size[:, :2] <= 0).any(axis=1)  # MuJoCo draws haze over it
        self._keep = self.endless | mirrors
        self._boxes = model.geom_aabb.reshape(-1, 2, 3).copy()  # centre and half edges, in the geom's own frame
        bounded = (shape == _PLANE) & ~self.endless
        self._boxes[bounded, 0], self._boxes[bounded, 1] = 0, model.geom_size[bounded] * [1, 1, 0]
        self.mirror_ids = np.flatnonzero(mirrors)
        self._groups = model.geom_group.copy()

    def outside(self, data: mujoco.MjData, camera: int) -> np.ndarray:
        """Returns which geoms (bool [ngeom]) put nothing into `camera`'s square picture at `data`'s poses."""
        hidden = self.unseen(data, camera)
        return hidden & self.unmirrored(data, camera) if hidden.any() else hidden

    def unseen(self, data: mujoco.MjData, camera: int) -> np.ndarray:
        """Returns which geoms (bool [ngeom]) `camera` does not see itself; it may see them in a mirror."""
        planes, eye = self._sides(data, camera), data.cam_xpos[camera]
        centres, spans = self.boxes(data)
        return _beyond((centres - eye) @ planes.T, spans, planes) & ~self._keep

    def unmirrored(self, data: mujoco.MjData, camera: int) -> np.ndarray:
        """Returns which geoms (bool [ngeom]) `camera` sees in no mirror."""
        planes, eye = self._sides(data, camera), data.cam_xpos[camera]
        boxes, hidden = self.boxes(data), ~self._keep
        for geom in self.mirror_ids:
            hidden &= self._unmirrored(data, geom, planes, eye, boxes)
        return hidden

    def mirrors(self, data: mujoco.MjData, camera: int) -> bool:
        """Returns whether `camera`'s picture may hold a mirror; without one the mirrored pass draws nothing."""
        planes = self._sides(data, camera)
        offsets = data.geom_xpos[self.mirror_ids] - data.cam_xpos[camera]
        size = self._model.geom_size[self.mirror_ids]
        endless = self.endless[self.mirror_ids]
        reach = np.linalg.norm(size, axis=1) + SLACK_M
        return bool((endless | ((offsets @ planes.T + reach[:, None]).min(axis=1) >= 0)).any())

    def _unmirrored(self, data, geom: int, planes: np.ndarray, eye: np.ndarray, boxes) -> np.ndarray:
        """Returns which geoms have no mirror image in the view by the reflective geom `geom`."""
        mat, place, size = data.geom_xmat[geom].reshape(3, 3), data.geom_xpos[geom], self._model.geom_size[geom]
        normal = mat[:, 2]
        if self._model.geom_type[geom] == _BOX:
            place = place + size[2] * normal  # a box mirrors in its upper side
        if (eye - place) @ normal > 0 and size[0] > 0 and size[1] > 0:
            planes = np.concatenate([planes, _pyramid(eye, place, mat[:, 0] * size[0], mat[:, 1] * size[1])])
        centres, spans = boxes
        height = (centres - place) @ normal
        images = centres - 2 * height[:, None] * normal
        turned = planes - 2 * (planes @ normal)[:, None] * normal  # as the geoms themselves see them
        behind = _beyond(height[:, None], spans, normal[None])
        return behind | _beyond((images - eye) @ planes.T, spans, turned)

    def boxes(self, data: mujoco.MjData):
        """Returns a box around each geom, in metres: its centre [ngeom, 3] and its half edges [ngeom, 3, 3]."""
        turn = data.geom_xmat.reshape(-1, 3, 3)
        centres = data.geom_xpos + (turn @ self._boxes[:, 0, :, None])[..., 0]
        return centres, (turn * self._boxes[:, 1, None]).transpose(0, 2, 1)

    def _sides(self, data, camera: int) -> np.ndarray:
        return _side_planes(self._model.cam_fovy[camera], data.cam_xmat[camera].reshape(3, 3))

    def hide(self, hidden: np.ndarray) -> None:
        """Takes the geoms of `hidden` out of what `mjv_updateScene` draws, until `show_all`."""
        self._model.geom_group[hidden] = HIDDEN_GROUP

    def show_all(self) -> None:
        self._model.geom_group[:] = self._groups


def _beyond(distances: np.ndarray, spans: np.ndarray, planes: np.ndarray) -> np.ndarray:
    """Returns which boxes [n] lie wholly outside one of `planes` [m, 3], their centres at signed `distances` [n, m]."""
    reach = np.abs(spans @ planes.T).sum(axis=1)
    return (distances + reach + SLACK_M).min(axis=1) < 0


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
