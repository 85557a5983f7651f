"""Small closed triangle meshes with normals and texture coordinates, written as MuJoCo `.msh` files.

Every builder returns a `Mesh` whose faces are counter-clockwise seen from outside (MuJoCo culls back faces) and whose
vertices are split at hard edges, so that the stored normals are what the renderer shows. A `Skin` is the rectangle
(u0, v0, u1, v1) of the object's texture that a face shows; v = 0 is the top row of the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Skin = tuple[float, float, float, float]
HARD_EDGE_DEG = 35.0  # profile corners sharper than this get two normals


class Mesh(NamedTuple):
    """A triangle mesh: `pos` [n, 3] metres, `nrm` [n, 3] unit, `uv` [n, 2], `tri` [m, 3] vertex indices."""

    pos: np.ndarray
    nrm: np.ndarray
    uv: np.ndarray
    tri: np.ndarray

    def transformed(self, pos=(0.0, 0.0, 0.0), rot: np.ndarray | None = None) -> Mesh:
        """Return the mesh turned by the matrix `rot` [3, 3] about the origin and then shifted by `pos` (m)."""
        rot = np.eye(3) if rot is None else rot
        return Mesh(self.pos @ rot.T + np.asarray(pos, float), self.nrm @ rot.T, self.uv, self.tri)

    def scaled(self, factor: float) -> Mesh:
        """Return the mesh stretched by a positive factor."""
        return Mesh(self.pos * factor, self.nrm, self.uv, self.tri)

    def tobytes(self) -> bytes:
        """Return the content of a `.msh` file: four counts, then float32 arrays, then int32 faces.

        Rounded, and without a sign for zero, which the last bit of a sum decides, and that not everywhere alike.
        """
        counts = np.array([len(self.pos), len(self.nrm), len(self.uv), len(self.tri)], "<i4")
        floats = [(np.round(a, 6) + 0.0).astype("<f4").tobytes() for a in (self.pos, self.nrm, self.uv)]
        return counts.tobytes() + b"".join(floats) + self.tri.astype("<i4").tobytes()


def merge(meshes: Sequence[Mesh]) -> Mesh:
    """Return one mesh that holds all of `meshes`."""
    offsets = np.cumsum([0] + [len(m.pos) for m in meshes[:-1]])
    return Mesh(
        np.concatenate([m.pos for m in meshes]),
        np.concatenate([m.nrm for m in meshes]),
        np.concatenate([m.uv for m in meshes]),
        np.concatenate([m.tri + o for m, o in zip(meshes, offsets, strict=True)]),
    )


# face name -> (outward axis, axis to the viewer's right, axis up), as signed unit vectors
_FACES = {
    "x+": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "x-": ((-1, 0, 0), (0, -1, 0), (0, 0, 1)),
    "y+": ((0, 1, 0), (-1, 0, 0), (0, 0, 1)),
    "y-": ((0, -1, 0), (1, 0, 0), (0, 0, 1)),
    "z+": ((0, 0, 1), (1, 0, 0), (0, 1, 0)),
    "z-": ((0, 0, -1), (-1, 0, 0), (0, 1, 0)),
}


def box(half: Sequence[float], skin: Skin, faces: dict[str, Skin] | None = None) -> Mesh:
    """Return a box of half sizes `half` (m) around the origin; `faces` overrides the skin per face ("x+", "z-", …)."""
    half = np.asarray(half, float)
    pos, nrm, uv, tri = [], [], [], []
    for name, axes in _FACES.items():
        out, right, up = (np.array(a, float) for a in axes)
        u0, v0, u1, v1 = (faces or {}).get(name, skin)
        first = len(pos)
        for sr, su, tex in ((-1, -1, (u0, v1)), (1, -1, (u1, v1)), (1, 1, (u1, v0)), (-1, 1, (u0, v0))):
            pos.append((out + sr * right + su * up) * half)
            nrm.append(out)
            uv.append(tex)
        tri += [(first, first + 1, first + 2), (first, first + 2, first + 3)]
    return Mesh(np.array(pos), np.array(nrm), np.array(uv), np.array(tri))


def lathe(profile: Sequence[tuple[float, float]], skins: Skin | Sequence[Skin], n: int = 24) -> Mesh:
    """Return the solid of revolution of `profile`, points (radius, z) from the bottom centre to the top centre.

    `skins` is one skin or one per profile segment; u runs once around, v from the segment's end (top) to its start.
    """
    return loft([(r, r, z) for r, z in profile], skins, n)


def loft(sections: Sequence[tuple[float, float, float]], skins: Skin | Sequence[Skin], n: int = 24) -> Mesh:
    """Return the solid over ellipses (half x, half y, z), the first and last of them points; skins as in `lathe`."""
    points = np.asarray(sections, float)
    per_segment = [skins] * (len(points) - 1) if isinstance(skins[0], (int, float)) else list(skins)
    if len(per_segment) != len(points) - 1:
        raise ValueError(f"{len(per_segment)} skins for {len(points) - 1} segments; give one skin, or one per segment")
    angle = np.linspace(0, 2 * np.pi, n + 1)
    around = np.column_stack([np.cos(angle), np.sin(angle), np.ones(n + 1)])
    rings = points[:, None] * around  # [sections, n + 1, 3]
    along = np.diff(rings, axis=0)
    size = (points[1:, :2] + points[:-1, :2])[:, None] / 2
    across = np.concatenate([size * around[:, [1, 0]] * (-1, 1), np.zeros((len(size), n + 1, 1))], axis=2)
    facing = np.cross(across, along)
    facing /= np.linalg.norm(facing, axis=2, keepdims=True)
    i = np.arange(n)
    low_fan, high_fan = np.column_stack([i, i + 1, i + n + 2]), np.column_stack([i, i + n + 2, i + n + 1])
    parts = []
    for k, (u0, v0, u1, v1) in enumerate(per_segment):
        u = np.linspace(u0, u1, n + 1)
        uv = np.concatenate([np.column_stack([u, np.full(n + 1, v)]) for v in (v1, v0)])
        nrm = np.concatenate([_softened(facing, k, k - 1), _softened(facing, k, k + 1)])
        fans = [fan for fan, end in ((low_fan, k), (high_fan, k + 1)) if points[end, 0] > 0]
        parts.append(Mesh(np.concatenate(rings[k : k + 2]), nrm, uv, np.concatenate(fans)))
    return merge(parts)


def _softened(facing: np.ndarray, k: int, other: int) -> np.ndarray:
    """Return segment k's normals [n + 1, 3], averaged with its neighbour's where their edge is soft."""
    if not 0 <= other < len(facing):
        return facing[k]
    soft = np.einsum("ij,ij->i", facing[k], facing[other]) > np.cos(np.radians(HARD_EDGE_DEG))
    mean = facing[k] + facing[other]
    norm = np.linalg.norm(mean, axis=1, keepdims=True)
    return np.where(soft[:, None], mean / np.where(norm > 0, norm, 1), facing[k])


def tube(path: Sequence[Sequence[float]], radius: float, skin: Skin, n: int = 8, flat: float = 1.0) -> Mesh:
    """Return a round bar of `radius` (m) along the points of `path` [k, 3]; `flat` squeezes its second axis."""
    pts = np.asarray(path, float)
    tangent = np.gradient(pts, axis=0)
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
    side = np.cross(tangent[0], [0.0, 0.0, 1.0] if abs(tangent[0][2]) < 0.9 else [0.0, 1.0, 0.0])
    u0, v0, u1, v1 = skin
    angle = np.linspace(0, 2 * np.pi, n + 1)
    pos, nrm, uv = [], [], []
    for k, (point, along) in enumerate(zip(pts, tangent, strict=True)):
        side = side - along * (side @ along)
        side /= np.linalg.norm(side)
        other = np.cross(along, side)
        offset = np.cos(angle)[:, None] * side + flat * np.sin(angle)[:, None] * other
        normal = flat * np.cos(angle)[:, None] * side + np.sin(angle)[:, None] * other
        pos.append(point + radius * offset)
        nrm.append(normal / np.linalg.norm(normal, axis=1, keepdims=True))
        uv.append(np.column_stack([np.linspace(u0, u1, n + 1), np.full(n + 1, v0 + (v1 - v0) * k / (len(pts) - 1))]))
    i, rows = np.arange(n), n + 1
    tri = [
        np.concatenate([np.column_stack([i, i + 1, i + 1 + rows]), np.column_stack([i, i + 1 + rows, i + rows])])
        + k * rows
        for k in range(len(pts) - 1)
    ]
    body = Mesh(np.concatenate(pos), np.concatenate(nrm), np.concatenate(uv), np.concatenate(tri))
    ends = [_cap(pos[0], -tangent[0], skin, True), _cap(pos[-1], tangent[-1], skin, False)]
    return merge([body, *ends])


def _cap(loop: np.ndarray, normal: np.ndarray, skin: Skin, backwards: bool) -> Mesh:
    """Return the flat fan that closes a convex `loop` [n+1, 3] whose last point repeats the first."""
    pos = loop[:-1]
    n = len(pos)
    i = np.arange(1, n - 1)
    tri = np.column_stack([np.zeros_like(i), i + 1, i] if backwards else [np.zeros_like(i), i, i + 1])
    centre = ((skin[0] + skin[2]) / 2, (skin[1] + skin[3]) / 2)
    return Mesh(pos, np.tile(normal, (n, 1)), np.tile(centre, (n, 1)), tri)


def prism(outline: Sequence[Sequence[float]], z0: float, z1: float, skin: Skin, top: Skin | None = None) -> Mesh:
    """Return the upright prism over a convex counter-clockwise `outline` [n, 2] from z0 to z1 (m), flat shaded."""
    pts = np.asarray(outline, float)
    loop = np.vstack([pts, pts[:1]])
    upper = _cap(np.column_stack([loop, np.full(len(loop), z1)]), np.array([0, 0, 1.0]), top or skin, False)
    lower = _cap(np.column_stack([loop, np.full(len(loop), z0)]), np.array([0, 0, -1.0]), skin, True)
    return merge([frustum(pts, z0, pts, z1, skin), upper, lower])


def frustum(low: np.ndarray, z0: float, high: np.ndarray, z1: float, skin: Skin) -> Mesh:
    """Return the flat-shaded side walls between two counter-clockwise polygons [n, 2] at z0 and z1 (m)."""
    u0, v0, u1, v1 = skin
    uv = np.array([(u0, v1), (u1, v1), (u1, v0), (u0, v0)])
    parts = []
    for a, b, c, d in zip(low, np.roll(low, -1, axis=0), np.roll(high, -1, axis=0), high, strict=True):
        pos = np.array([[*a, z0], [*b, z0], [*c, z1], [*d, z1]])
        out = np.cross(pos[1] - pos[0], pos[3] - pos[0])
        parts.append(Mesh(pos, np.tile(out / np.linalg.norm(out), (4, 1)), uv, np.array([(0, 1, 2), (0, 2, 3)])))
    return merge(parts)


def regular(n: int, radius: float, turn: float = 0.0) -> np.ndarray:
    """Return the [n, 2] corners of a regular polygon whose flats lie at `radius`; `turn` in sides."""
    angle = 2 * np.pi * (np.arange(n) + 0.5 + turn) / n
    return radius / np.cos(np.pi / n) * np.column_stack([np.cos(angle), np.sin(angle)])
