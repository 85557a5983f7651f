"""Convert rotations between the representations of upstream's training data.

axis_angle [3] in radians; quaternion [4] as w, x, y, z; rotation_6d: the first two rows of the matrix; euler_angles_rpy
and its like: r, p, y mean turns about x, y, z, each about the axes that the turns before it have moved.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.transform import Rotation

SIZES = {"axis_angle": 3, "quaternion": 4, "rotation_6d": 6}  # of Euler angles: 3
_AXES = str.maketrans("rpy", "XYZ")  # capitals: scipy turns about the moved axes


def convert(values: np.ndarray, source: str, target: str) -> np.ndarray:
    """Return rotations [..., n] of representation `source` in that of `target`, in the dtype of `values`."""
    flat = _read(values.reshape(-1, values.shape[-1]).astype(np.float64), source)
    return _write(flat, target).reshape(*values.shape[:-1], -1).astype(values.dtype)


def size(kind: str) -> int:
    """Return the number of values of a representation."""
    return SIZES.get(kind, 3)


def _read(values: np.ndarray, kind: str) -> Rotation:
    if kind == "axis_angle":
        return Rotation.from_rotvec(values)
    if kind == "quaternion":
        return Rotation.from_quat(np.roll(values, -1, axis=-1))  # scipy: x, y, z, w
    if kind == "rotation_6d":
        # the matrices whose first two rows are nearest, by Gram and Schmidt
        first = values[:, :3] / np.linalg.norm(values[:, :3], axis=-1, keepdims=True)
        second = values[:, 3:] - (first * values[:, 3:]).sum(-1, keepdims=True) * first
        second /= np.linalg.norm(second, axis=-1, keepdims=True)
        return Rotation.from_matrix(np.stack((first, second, np.cross(first, second)), axis=1))
    return Rotation.from_euler(_order(kind), values)


def _write(rotation: Rotation, kind: str) -> np.ndarray:
    if kind == "axis_angle":
        return rotation.as_rotvec()
    if kind == "quaternion":
        return np.roll(rotation.as_quat(canonical=True), 1, axis=-1)
    if kind == "rotation_6d":
        return rotation.as_matrix()[:, :2].reshape(-1, 6)
    return rotation.as_euler(_order(kind))


def _order(kind: str) -> str:
    return kind.rpartition("_")[2].translate(_AXES)
