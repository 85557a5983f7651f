"""Leave out geoms that a camera cannot see, without changing a pixel.

Rendering time depends on the number of vertices, even invisible ones. A geom whose bounding boxes lie outside the
camera's frustum puts no fragment into the image, with two exceptions. MuJoCo draws the scene again as reflected by a
plane or box, so the geom's reflection must be outside the mirror's frustum too. And infinite planes and mirrors always
stay, because MuJoCo would use the next one instead.
"""

import mujoco
import numpy as np

HIDDEN_GROUP = 5  # of MuJoCo's six geom groups; LIBERO draws group 1
MANY_TRIANGLES, SPLITS = 1000, 4  # a mesh of so many is halved so often, for boxes that are close to it
SLACK_M, SLACK_PIXELS = 1e-3, 1  # for the rounding of positions and planes, in metres, and of pixels
_CORNERS = np.array(np.meshgrid((-1, 1), (-1, 1), (-1, 1))).reshape(3, -1).T  # [8, 3]
_PLANE, _BOX, _MESH = (int(getattr(mujoco.mjtGeom, f"mjGEOM_{name}")) for name in ("PLANE", "BOX", "MESH"))


class Culling:
    """Finds the geoms that a model's cameras cannot see, of those that are `drawn` [n] at all."""

    def __init__(self, model: mujoco.MjModel, drawn: np.ndarray):
        self._model, self.drawn = model, drawn
        shape = model.geom_type
        reflects = np.zeros(model.ngeom, bool)
        has_material = model.geom_matid >= 0
        reflects[has_material] = model.mat_reflectance[model.geom_matid[has_material]] > 0
        mirrors = reflects & ((shape == _PLANE) | (shape == _BOX))
        self.infinite = (shape == _PLANE) & (model.geom_size[:, :2] <= 0).any(axis=1)  # MuJoCo draws haze over it
        self._never_culled = self.infinite | mirrors
        boxes = model.geom_aabb.reshape(-1, 2, 3).copy()  # centre and half edges, in the geom's own frame
        bounded = (shape == _PLANE) & ~self.infinite
        boxes[bounded, 0], boxes[bounded, 1] = 0, model.geom_size[bounded] * [1, 1, 0]
        parts = [_boxes_of(model, geom) if shape[geom] == _MESH else boxes[geom, None] for geom in drawn]
        self._boxes = np.concatenate(parts)
        counts = np.array([len(part) for part in parts])
        self._geom, self._first = np.repeat(drawn, counts), np.cumsum(counts) - counts
        self.mirror_ids = drawn[mirrors[drawn]]
        self._groups = model.geom_group.copy()

    def invisible(self, data: mujoco.MjData, camera: int) -> np.ndarray:
        """Return the geoms (bool [ngeom]) that are not in `camera`'s square image at the poses of `data`."""
        hidden = self.outside_frustum(data, camera)
        return hidden & self.unreflected(data, camera) if hidden.any() else hidden

    def outside_frustum(self, data: mujoco.MjData, camera: int) -> np.ndarray:
        """Return the geoms (bool [ngeom]) outside the frustum of `camera`; a mirror may still show them."""
        planes, eye = self._frustum(data, camera), data.cam_xpos[camera]
        centres, half_edges = self.bounding_boxes(data)
        return self._all_boxes(_outside((centres - eye) @ planes.T, half_edges, planes)) & ~self._never_culled

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
            hidden &= self._all_boxes(behind | _outside((reflected - eye) @ planes.T, half_edges, reflected_planes))
        return hidden

    def sees_mirror(self, data: mujoco.MjData, camera: int) -> bool:
        """Return whether `camera`'s image may hold a mirror; without one the reflection pass draws nothing."""
        finest = 1 << 16  # an image of any size shows no more of it
        return any(min(self.area(data, camera, geom, finest)[2:]) > 0 for geom in self.mirror_ids)

    def area(self, data: mujoco.MjData, camera: int, geom: int, size: int) -> tuple[int, int, int, int]:
        """Return the pixels that a box or plane may cover in an image [size, size] of `camera`.

        They are x, y from below, width and height; the whole image, if it is in it and a part is behind the eye.
        """
        if self.infinite[geom]:
            return 0, 0, size, size
        turn, box = data.geom_xmat[geom].reshape(3, 3), self._boxes[np.searchsorted(self._geom, geom)]
        corners = data.geom_xpos[geom] + (box[0] + _CORNERS * box[1]) @ turn.T - data.cam_xpos[camera]
        if ((corners @ self._frustum(data, camera).T).max(axis=0) < -SLACK_M).any():
            return 0, 0, 0, 0
        seen = corners @ data.cam_xmat[camera].reshape(3, 3)  # x right, y up, z backwards
        if (seen[:, 2] > -SLACK_M).any():
            return 0, 0, size, size
        spots = seen[:, :2] / -seen[:, 2:] / np.tan(np.deg2rad(self._model.cam_fovy[camera]) / 2)  # in [-1, 1]
        low, high = ((1 + spots.min(0)) * size / 2 - SLACK_PIXELS, (1 + spots.max(0)) * size / 2 + SLACK_PIXELS)
        x, y = np.floor(low).clip(0, size).astype(int).tolist()
        right, top = np.ceil(high).clip(0, size).astype(int).tolist()
        return x, y, right - x, top - y

    def bounding_boxes(self, data: mujoco.MjData) -> tuple[np.ndarray, np.ndarray]:
        """Return boxes around the drawn geoms, n in all, in metres: their centres [n, 3] and half edges [n, 3, 3]."""
        turn = data.geom_xmat.reshape(-1, 3, 3)[self._geom]
        centres = data.geom_xpos[self._geom] + (turn @ self._boxes[:, 0, :, None])[..., 0]
        return centres, (turn * self._boxes[:, 1, None]).transpose(0, 2, 1)

    def touching(self, data: mujoco.MjData) -> "Touching":
        """Return an answer to which of the drawn geoms may touch each other."""
        return Touching(*self.bounding_boxes(data), self._first)

    def _all_boxes(self, holds: np.ndarray) -> np.ndarray:
        """Return of which drawn geoms it holds for all boxes: bool [ngeom]."""
        geoms = np.zeros(self._model.ngeom, bool)
        geoms[self.drawn] = np.logical_and.reduceat(holds, self._first)
        return geoms

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


class Touching:
    """Which of n geoms may touch each other: `coarse`, bool [n, n], and more precisely `pair`."""

    def __init__(self, centres: np.ndarray, half_edges: np.ndarray, first: np.ndarray):
        reach = np.abs(half_edges).sum(axis=1) + SLACK_M
        self._low, self._high, self._ends = centres - reach, centres + reach, [*first, len(centres)]
        low, high = np.minimum.reduceat(self._low, first), np.maximum.reduceat(self._high, first)
        self.coarse = ((low[:, None] <= high) & (high[:, None] >= low)).all(-1)

    def pair(self, one: int, other: int) -> bool:
        """Return whether any of the boxes of two geoms overlap."""
        a, b = (slice(self._ends[geom], self._ends[geom + 1]) for geom in (one, other))
        low, high = self._low[a, None] <= self._high[b], self._high[a, None] >= self._low[b]
        return bool((low & high).all(-1).any())


def _outside(distances: np.ndarray, half_edges: np.ndarray, planes: np.ndarray) -> np.ndarray:
    """Return the boxes (bool [n]) outside one of `planes` [m, 3]; `distances` [n, m] are of their centres, signed."""
    reach = np.abs(half_edges @ planes.T).sum(axis=1)
    return (distances + reach + SLACK_M).min(axis=1) < 0


def _boxes_of(model: mujoco.MjModel, geom: int) -> np.ndarray:
    """Return boxes that hold a mesh geom's triangles: [n, 2, 3], centre and half edges in the geom's frame."""
    mesh = model.geom_dataid[geom]
    start, count = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
    triangles = model.mesh_vert[model.mesh_vertadr[mesh] :][model.mesh_face[start : start + count]]  # [n, 3, 3]
    parts = [triangles]
    for _ in range(SPLITS if count >= MANY_TRIANGLES else 0):
        parts = [half for part in parts for half in _halves(part) if len(half)]
    low, high = (np.array([limit(part.reshape(-1, 3), axis=0) for part in parts]) for limit in (np.min, np.max))
    return np.stack([high + low, high - low], axis=1) / 2


def _halves(triangles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the triangles [n, 3, 3] in two parts, at the middle of the longest axis."""
    middle = triangles.mean(axis=1)
    axis = np.ptp(middle, axis=0).argmax()
    first = middle[:, axis] < np.median(middle[:, axis])
    return triangles[first], triangles[~first]
