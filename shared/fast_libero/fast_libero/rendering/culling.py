"""Leave out geoms that a camera cannot see, without changing a pixel.

Rendering time depends on the number of vertices, even invisible ones. A geom whose bounding box lies outside the
camera's frustum puts no fragment into the image, with two exceptions. MuJoCo draws the scene again as reflected by a
plane or box, so the geom's reflection must be outside the mirror's frustum too. And infinite planes and mirrors always
stay, because MuJoCo would use the next one instead.
"""

import mujoco
import numpy as np

HIDDEN_GROUP = 5  # of MuJoCo's six geom groups; LIBERO draws group 1
SLACK_M = 1e-3  # for the rounding of positions and planes, in metres
_PLANE, _BOX = int(mujoco.mjtGeom.mjGEOM_PLANE), int(mujoco.mjtGeom.mjGEOM_BOX)


class Culling:
    """Finds the geoms that a model's cameras cannot see."""

    def __init__(self, model: mujoco.MjModel):
        self._model = model
        shape = model.geom_type
        reflects = np.zeros(model.ngeom, bool)
        has_material = model.geom_matid >= 0
        reflects[has_material] = model.mat_reflectance[model.geom_matid[has_material]] > 0
        mirrors = reflects & ((shape == _PLANE) | (shape == _BOX))
        self.infinite = (shape == _PLANE) & (model.geom_size[:, :2] <= 0).any(axis=1)  # MuJoCo draws haze over it
        self._never_culled = self.infinite | mirrors
        self._boxes = model.geom_aabb.reshape(-1, 2, 3).copy()  # centre and half edges, in the geom's own frame
        bounded = (shape == _PLANE) & ~self.infinite
        self._boxes[bounded, 0], self._boxes[bounded, 1] = 0, model.geom_size[bounded] * [1, 1, 0]
        self.mirror_ids = np.flatnonzero(mirrors)
        self._groups = model.geom_group.copy()

    def invisible(self, data: mujoco.MjData, camera: int) -> np.ndarray:
        """Return the geoms (bool [ngeom]) that are not in `camera`'s square image at the poses of `data`."""
        hidden = self.outside_frustum(data, camera)
        return hidden & self.unreflected(data, camera) if hidden.any() else hidden

    def outside_frustum(self, data: mujoco.MjData, camera: int) -> np.ndarray:
        """Return the geoms (bool [ngeom]) outside the frustum of `camera`; a mirror may still show them."""
        planes, eye = self._frustum(data, camera), data.cam_xpos[camera]
        centres, half_edges = self.bounding_boxes(data)
        return _outside((centres - eye) @ planes.T, half_edges, planes) & ~self._never_culled

    def unreflected(self, data: mujoco.MjData, camera: int) -> np.ndarray:
        """Return the geoms (bool [ngeom]) that no mirror shows to `camera`."""
        frustum, eye = self._frustum(data, camera), data.cam_xpos[camera]
        (centres, half_edges), hidden = self.bounding_boxes(data), ~self._never_culled
        for geom in self.mirror_ids:
            mat, pos, size = data.geom_xmat[geom].reshape(3, 3), data.geom_xpos[geom], self._model.geom_size[geom]
            planes, normal = frustum, mat[:, 2]
            if self._model.geom_type[geom] == _BOX:
                pos = pos + size[2] * normal  # a box reflects in its upper side
            if (eye - pos) @ normal > 0 and size[0] > 0 and size[1] > 0:
                # and inside the pyramid from the eye over the mirror
                x, y = mat[:, 0] * size[0], mat[:, 1] * size[1]
                corners = np.stack([pos + x + y, pos - x + y, pos - x - y, pos + x - y]) - eye
                sides = np.cross(corners, np.roll(corners, -1, axis=0))
                sides /= np.linalg.norm(sides, axis=1, keepdims=True)
                planes = np.concatenate([planes, sides * np.sign(sides @ (pos - eye))[:, None]])
            height = (centres - pos) @ normal
            reflected = centres - 2 * height[:, None] * normal
            reflected_planes = planes - 2 * (planes @ normal)[:, None] * normal  # as the geoms themselves see them
            behind = _outside(height[:, None], half_edges, normal[None])
            hidden &= behind | _outside((reflected - eye) @ planes.T, half_edges, reflected_planes)
        return hidden

    def sees_mirror(self, data: mujoco.MjData, camera: int) -> bool:
        """Return whether `camera`'s image may hold a mirror; without one the reflection pass draws nothing."""
        planes = self._frustum(data, camera)
        offsets = data.geom_xpos[self.mirror_ids] - data.cam_xpos[camera]
        size = self._model.geom_size[self.mirror_ids]
        infinite = self.infinite[self.mirror_ids]
        reach = np.linalg.norm(size, axis=1) + SLACK_M
        return bool((infinite | ((offsets @ planes.T + reach[:, None]).min(axis=1) >= 0)).any())

    def bounding_boxes(self, data: mujoco.MjData) -> tuple[np.ndarray, np.ndarray]:
        """Return a box around each geom, in metres: its centre [ngeom, 3] and its half edges [ngeom, 3, 3]."""
        turn = data.geom_xmat.reshape(-1, 3, 3)
        centres = data.geom_xpos + (turn @ self._boxes[:, 0, :, None])[..., 0]
        return centres, (turn * self._boxes[:, 1, None]).transpose(0, 2, 1)

    def _frustum(self, data: mujoco.MjData, camera: int) -> np.ndarray:
        """Return the inward normals [5, 3] of a square view: left, right, bottom, top, and the plane of the eye."""
        half = np.deg2rad(self._model.cam_fovy[camera]) / 2
        cos, sin = np.cos(half), np.sin(half)
        local = np.array([[cos, 0, -sin], [-cos, 0, -sin], [0, cos, -sin], [0, -cos, -sin], [0, 0, -1]])
        return local @ data.cam_xmat[camera].reshape(3, 3).T  # x right, y up, looking along -z

    def hide(self, hidden: np.ndarray) -> None:
        """Exclude the geoms of `hidden` from `mjv_updateScene` until `show_all`."""
        self._model.geom_group[hidden] = HIDDEN_GROUP

    def show_all(self) -> None:
        self._model.geom_group[:] = self._groups


def _outside(distances: np.ndarray, half_edges: np.ndarray, planes: np.ndarray) -> np.ndarray:
    """Return the boxes (bool [n]) outside one of `planes` [m, 3]; `distances` [n, m] are of their centres, signed."""
    reach = np.abs(half_edges @ planes.T).sum(axis=1)
    return (distances + reach + SLACK_M).min(axis=1) < 0
