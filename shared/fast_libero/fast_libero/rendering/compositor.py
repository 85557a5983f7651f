"""Render images from layers: a fixed camera's static geoms are rendered once, a mirror separately.

LIBERO's mount, table, walls and untouched objects cost a software renderer more than the moving arm, and a mirror makes
MuJoCo draw the whole scene twice. The images are bit-identical to those of one `mjr_render` over everything:

- Of two surfaces at the same depth, MuJoCo shows the one drawn later. Layers come first, so a static geom that any
  geom drawn before it may touch, by their bounding boxes, is drawn again in its own order.
- A mirror's layer holds the mirror's pixels, with its reflections. What is next to the mirror is drawn again after it.
- Unsupported cases (shadows, glass in a mirror, two mirrors) get a full render; so does a moving camera that sees no
  mirror, because nothing in its image stays the same.

README.md in this directory explains one frame.
"""

import mujoco
import numpy as np
from OpenGL import GL

from fast_libero.rendering import layers
from fast_libero.rendering.stage import Stage

_GLASS_BELOW = 0.995  # opacity below which MuJoCo blends
JOINING = 30_000  # triangles that take as long to draw as it takes to add something to a layer
MIN_STILL_FRAMES = 2  # images with the same pose before an object counts as at rest
_DEFAULT_RGBA = (0.5, 0.5, 0.5, 1.0)  # a geom with this colour uses its material's


class RestDetector:
    """Tracks the `movable` geoms (bool [ngeom]) from image to image.

    When an object leaves a layer, that must be rendered again, which costs as much as an image; joining costs less. So
    objects join once leaving them out has cost as much as joining, in `triangles` [ngeom]; and an object that moves
    soon after coming to rest must stay still twice as long the next time.
    """

    def __init__(self, movable: np.ndarray, triangles: np.ndarray):
        self._movable, self._triangles = movable, triangles
        self._poses = None
        self._still = np.zeros(len(movable), int)  # number of images without motion
        self._min_still = np.full(len(movable), MIN_STILL_FRAMES)
        self._spent = 0
        self.at_rest = np.zeros(len(movable), bool)

    def update(self, poses: np.ndarray) -> np.ndarray:
        """Return the geoms (bool [ngeom]) that belong in the layer: their `poses`, float32 [ngeom, 12], stay the same.

        The same means bit-identical.
        """
        changed = np.ones(len(poses), bool) if self._poses is None else (poses != self._poses).any(axis=1)
        disturbed = self.at_rest & changed
        if disturbed.any():
            soon = self._still < 4 * self._min_still
            self._min_still[disturbed] = np.where(soon, 2 * self._min_still, MIN_STILL_FRAMES)[disturbed]
        self._still = np.where(changed, 0, self._still + 1)
        self._poses = poses
        ready = self._movable & (self._still >= self._min_still)
        self._spent += self._triangles[ready & ~self.at_rest].sum()
        if disturbed.any() or self._spent >= JOINING:
            self.at_rest, self._spent = ready, 0
        return self.at_rest


class Compositor:
    """Renders a stage that it `supports`. Raises RuntimeError or a GLError if the driver is too old."""

    def __init__(self, stage: Stage):
        self._stage = stage
        self._static = _static(stage)
        self._planes = np.flatnonzero(self._static & (stage.model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE))
        self._shader = layers.CopyShader()
        # per camera: its layer, and the geoms and their appearance, or the scene, that it was rendered from
        self._static_layers: dict[int, tuple[layers.Layer, np.ndarray, bytes]] = {}
        self._mirror_layers: dict[int, tuple[layers.Layer, bytes]] = {}
        self._resting: dict[int, RestDetector] = {}  # per camera: detects geoms at rest

    @staticmethod
    def supports(stage: Stage) -> bool:
        """Return whether `stage`'s images can be composed from layers."""
        is_plain = not stage.model.light_castshadow.any() and len(stage.culling.mirror_ids) <= 1
        return bool(is_plain and stage.context.offSamples > 1)

    def render(self, camera: int) -> np.ndarray | None:
        """Return the image of `camera`: uint8 [size, size, 3]; None if it needs a full render."""
        stage, model, data, planes = self._stage, self._stage.model, self._stage.data, self._planes
        height = (data.cam_xpos[camera] - data.geom_xpos[planes]) * data.geom_xmat[planes, 2::3]
        if (height.sum(1) < 0).any():  # MuJoCo draws a static plane transparent that is seen from behind
            return None
        is_fixed = model.cam_mode[camera] == mujoco.mjtCamLight.mjCAMLIGHT_FIXED
        stays = is_fixed and model.body_weldid[model.cam_bodyid[camera]] == 0
        hidden = stage.culling.outside_frustum(data, camera)
        stack, still = [], np.zeros(model.ngeom, bool)
        for mirror in stage.culling.mirror_ids:
            area = stage.culling.area(data, camera, mirror, stage.size)
            if min(area[2:]) > 0:
                layer = self._mirror_layer(camera, area)
                if layer is None:
                    return None
                stack.append(layer.display_list)
            hidden[mirror] = True
        if stays:
            still = self._static | self._at_rest(camera)
            stack.append(self._static_layer(camera, still).display_list)
        if not stack:
            return None
        # the layers come first; then all geoms that they do not show
        hidden &= ~still
        hidden |= self._from_layer(~hidden, still)
        stage.update_scene(hidden, reflect=False, first=stack)
        stage.draw()
        return stage.read()

    def _at_rest(self, camera: int) -> np.ndarray:
        """Return the geoms (bool [ngeom]) that have not moved between the images of `camera`."""
        if camera not in self._resting:
            model, movable = self._stage.model, _solid(self._stage) & ~self._static
            triangles = np.zeros(model.ngeom, int)
            meshes = np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_MESH)
            triangles[meshes] = model.mesh_facenum[model.geom_dataid[meshes]]
            self._resting[camera] = RestDetector(movable, triangles)
        return self._resting[camera].update(self._poses())

    def _poses(self) -> np.ndarray:
        """Return each geom's pose as it is drawn: float32 [ngeom, 12]."""
        data = self._stage.data
        return np.concatenate([data.geom_xpos, data.geom_xmat], axis=1, dtype=np.float32, casting="same_kind")

    def _from_layer(self, rendered: np.ndarray, still: np.ndarray) -> np.ndarray:
        """Return the geoms of `still` (bool [ngeom]) that can stay in the layer if `rendered` are drawn after it."""
        drawn = self._stage.culling.drawn
        static, later = still[drawn], (rendered & ~still)[drawn]
        if static.any():
            touching = self._stage.culling.touching(self._stage.data)
            before = np.tril(touching.coarse, -1)  # [n, n]: may touch, and comes earlier in MuJoCo's order
            while len(pairs := np.argwhere(before & static[:, None] & later)):
                for geom, earlier in pairs.tolist():
                    before[geom, earlier] = False
                    if static[geom] and touching.pair(geom, earlier):
                        static[geom], later[geom] = False, True
        result = np.zeros(len(rendered), bool)
        result[drawn] = static
        return result

    def _new_layer(self) -> layers.Layer:
        return layers.Layer(self._stage.context, self._shader, self._stage.size)

    def _static_layer(self, camera: int, still: np.ndarray) -> layers.Layer:
        """Return the layer of `still` (bool [ngeom]) for `camera`, rendered again if its appearance has changed.

        Geoms that join are drawn over it, if none of its later ones may touch them.
        """
        stage = self._stage
        layer, held, previous = self._static_layers.get(camera) or (self._new_layer(), still, b"")
        if (appearance := self._appearance(camera, still)) == previous:
            return layer
        joining = still & ~held
        only_joins = joining.any() and not (held & ~still).any() and self._appearance(camera, held) == previous
        below = [layer.display_list] if only_joins and not self._touch_later(joining, held) else []
        added = joining if below else still
        stage.update_scene(~added, reflect=False, first=below)
        stage.scene.ngeom = len(below) + int(added.sum())  # without the sites at the end
        skybox = mujoco.mjtRndFlag.mjRND_SKYBOX
        stage.scene.flags[skybox], skybox_flag = 0, stage.scene.flags[skybox]
        stage.draw()
        stage.scene.flags[skybox] = skybox_flag
        layer.capture()
        self._static_layers[camera] = layer, still, appearance
        return layer

    def _appearance(self, camera: int, still: np.ndarray) -> bytes:
        """Return everything that a layer of `still` (bool [ngeom]) depends on."""
        model, data = self._stage.model, self._stage.data
        geoms = (still, self._poses()[still], model.geom_rgba[still], model.mat_rgba)
        lights = (data.light_xpos, data.light_xdir, model.light_active, model.light_diffuse)
        parts = (*geoms, *lights, data.cam_xpos[camera], data.cam_xmat[camera])
        return b"".join(part.tobytes() for part in parts)

    def _touch_later(self, some: np.ndarray, others: np.ndarray) -> bool:
        """Return whether any of `some` may touch one of `others` (both bool [ngeom]) that comes later in order."""
        touching, drawn = self._stage.culling.touching(self._stage.data), self._stage.culling.drawn
        some, others = some[drawn], others[drawn]
        pairs = np.argwhere(np.triu(touching.coarse) & some[:, None] & others)
        return any(touching.pair(*pair) for pair in pairs.tolist())

    def _mirror_layer(self, camera: int, area: tuple[int, int, int, int]) -> layers.Layer | None:
        """Return the layer of the mirror and its reflections, rendered again if its content has changed.

        area: the pixels of the mirror. None if there is glass among the reflections: the layer would show the mirror
        through the glass.
        """
        stage = self._stage
        hidden = stage.culling.unreflected(stage.data, camera)
        hidden[stage.culling.mirror_ids] = False
        layer, previous = self._mirror_layers.get(camera) or (self._new_layer(), None)
        layer.limit(area)
        stage.update_scene(hidden, reflect=True, first=[layer.clip])
        if any(0 < geom.rgba[3] < _GLASS_BELOW for geom in stage.scene.geoms[: stage.scene.ngeom]):
            return None
        content = stage.content()
        if content != previous:
            stage.draw()
            GL.glDisable(GL.GL_SCISSOR_TEST)
            layer.capture()
            self._mirror_layers[camera] = layer, content
        return layer

    def free(self) -> None:
        static, mirrors = self._static_layers.values(), self._mirror_layers.values()
        for layer in (*(layer for layer, *_ in static), *(layer for layer, _ in mirrors)):
            layer.free()
        self._shader.free()


def _static(stage: Stage) -> np.ndarray:
    """Return the visible geoms (bool [ngeom]) that never move, are opaque and do not reflect."""
    model = stage.model
    return _solid(stage) & (model.body_weldid[model.geom_bodyid] == 0)


def _solid(stage: Stage) -> np.ndarray:
    """Return the visible geoms (bool [ngeom]) that are opaque and do not reflect."""
    model = stage.model
    alpha = model.geom_rgba[:, 3].copy()
    plain = (model.geom_rgba == np.float32(_DEFAULT_RGBA)).all(axis=1) & (model.geom_matid >= 0)
    alpha[plain] = model.mat_rgba[model.geom_matid[plain], 3]
    solid = stage.visible() & (alpha == 1)
    solid[stage.culling.mirror_ids] = False
    solid[stage.culling.infinite] = False
    return solid
