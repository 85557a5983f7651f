"""Draws a fixed camera's picture from layers: what never moves is drawn once an episode, a mirror by itself.

LIBERO's mount, table and walls cost a software renderer as much as the moving arm, and a mirror makes MuJoCo draw the
whole scene twice. The pictures are those of one `mjr_render` over everything, to the bit:

- Of two surfaces at the same depth, MuJoCo shows the one drawn later. Layers come first, so a standing geom that any
  geom drawn before it may touch is drawn again in its own place; the boxes around both tell.
- A mirror's layer holds the mirror and what has an image in it. What is beside the mirror is drawn again after it.
- Where more thought would be needed (shadows, glass in a mirror, two mirrors, a moving camera) all is drawn anew.
"""

import mujoco
import numpy as np

from services.libero.simulator import layers
from services.libero.simulator.culling import SLACK_M
from services.libero.simulator.stage import Stage

_GLASS_BELOW = 0.995  # MuJoCo blends what is less opaque
_DEFAULT_RGBA = (0.5, 0.5, 0.5, 1.0)  # a geom of this colour has its material's


class Composite:
    """Draws what one stage shows, where `able` holds. Raises RuntimeError or a GLError where the driver is too old."""

    def __init__(self, stage: Stage):
        self._stage = stage
        self._shown = np.flatnonzero(stage.shown())
        self._standing = _standing(stage)
        self._planes = np.flatnonzero(self._standing & (stage.model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE))
        self._copier = layers.Copier()
        self._mirror = layers.Layer(stage.context, self._copier, stage.size)
        self._backgrounds = {}  # of each camera: its layer, and what it shows

    @staticmethod
    def able(stage: Stage) -> bool:
        """Returns whether `stage`'s pictures can be put together from layers."""
        shown = np.flatnonzero(stage.shown())
        return bool(
            stage.context.offSamples > 1
            and not stage.model.light_castshadow.any()
            and len(np.intersect1d(shown, stage.culling.mirror_ids)) <= 1
            and len(shown) > 2
            and _standing(stage)[shown[:2]].all()  # they lend the layers their places
        )

    def picture(self, camera: int) -> np.ndarray | None:
        """Returns what `camera` sees as posed: uint8 [size, size, 3]; None if that has to be drawn plainly."""
        if not self._stands(camera) or self._under_floor(camera):
            return None
        stack = [self._background(camera)]
        if self._stage.culling.mirrors(self._stage.view, camera):
            if not self._draw_mirror(camera):
                return None
            stack.insert(0, self._mirror)
        self._gather_rest(camera, stack)
        self._stage.render()
        return self._stage.read()

    def _gather_rest(self, camera: int, stack: list) -> None:
        """Fills the scene with the layers of `stack`, in place of the first geoms, and with what they leave out."""
        stage, mirrored = self._stage, len(stack) > 1
        hidden = stage.culling.unseen(stage.view, camera) & ~self._standing
        if mirrored:
            hidden[stage.culling.mirror_ids] = True
        hidden |= self._kept(~hidden)
        hidden[self._shown[:2]] = False, not mirrored
        stage.gather(hidden, mirror=False)
        for layer, geom in zip(stack, stage.scene.geoms, strict=False):
            layer.stand_in(geom)

    def _stands(self, camera: int) -> bool:
        model = self._stage.model
        still = model.cam_mode[camera] == mujoco.mjtCamLight.mjCAMLIGHT_FIXED
        return still and model.body_weldid[model.cam_bodyid[camera]] == 0

    def _under_floor(self, camera: int) -> bool:
        """Returns whether a standing plane is seen from behind: MuJoCo draws it as glass then."""
        view, planes = self._stage.view, self._planes
        return bool(
            (((view.cam_xpos[camera] - view.geom_xpos[planes]) * view.geom_xmat[planes, 2::3]).sum(1) < 0).any()
        )

    def _kept(self, drawn: np.ndarray) -> np.ndarray:
        """Returns which standing geoms (bool [ngeom]) the background may show although `drawn` are drawn after it."""
        shown = self._shown
        standing, others = self._standing[shown], (drawn & ~self._standing)[shown]
        centres, spans = (part[shown] for part in self._stage.culling.boxes(self._stage.view))
        reach = np.abs(spans).sum(axis=1) + SLACK_M
        low, high = centres - reach, centres + reach
        touching = ((low[:, None] <= high) & (high[:, None] >= low)).all(-1)
        before = np.tril(touching, -1)  # [n, n]: touches, and comes earlier in MuJoCo's order
        kept = standing
        while (late := kept & (before & others).any(1)).any():
            kept, others = kept & ~late, others | late
        result = np.zeros(len(drawn), bool)
        result[shown] = kept
        return result

    def _background(self, camera: int) -> layers.Layer:
        """Returns the layer of what stands still before `camera`, drawn again if any of it has changed."""
        stage = self._stage
        layer, drawn = self._backgrounds.get(camera) or (layers.Layer(stage.context, self._copier, stage.size), None)
        looks = self._looks(camera)
        if looks != drawn:
            stage.gather(~self._standing, mirror=False)
            stage.scene.ngeom = int(self._standing.sum())  # what follows are sites
            skybox = mujoco.mjtRndFlag.mjRND_SKYBOX
            stage.scene.flags[skybox], wanted = 0, stage.scene.flags[skybox]
            stage.render()
            stage.scene.flags[skybox] = wanted
            layer.take()
            self._backgrounds[camera] = layer, looks
        return layer

    def _looks(self, camera: int) -> bytes:
        model, view, still = self._stage.model, self._stage.view, self._standing
        parts = (view.geom_xpos[still], view.geom_xmat[still], model.geom_rgba[still], model.mat_rgba)
        lights = (view.light_xpos, view.light_xdir, model.light_active, model.light_diffuse)
        return b"".join(part.tobytes() for part in (*parts, *lights, view.cam_xpos[camera], view.cam_xmat[camera]))

    def _draw_mirror(self, camera: int) -> bool:
        """Draws the mirror and what has an image in it into their layer; returns whether that could be done.

        With glass among them it cannot: the layer would hold the mirror as seen through it.
        """
        stage = self._stage
        hidden = stage.culling.unmirrored(stage.view, camera)
        hidden[stage.culling.mirror_ids] = False
        stage.gather(hidden, mirror=True)
        if any(0 < geom.rgba[3] < _GLASS_BELOW for geom in stage.scene.geoms[: stage.scene.ngeom]):
            return False
        stage.render()
        self._mirror.take()
        return True

    def free(self) -> None:
        for layer, _ in self._backgrounds.values():
            layer.free()
        self._mirror.free()
        self._copier.free()


def _standing(stage: Stage) -> np.ndarray:
    """Returns which shown geoms (bool [ngeom]) never move, are opaque and only cover what is behind them."""
    model = stage.model
    standing = stage.shown() & (model.body_weldid[model.geom_bodyid] == 0) & (_alpha(model) == 1)
    standing[stage.culling.mirror_ids] = False
    standing[stage.culling.endless] = False
    return standing


def _alpha(model: mujoco.MjModel) -> np.ndarray:
    """Returns how opaque each geom is, from 0 to 1: [ngeom]."""
    alpha = model.geom_rgba[:, 3].copy()
    plain = (model.geom_rgba == np.float32(_DEFAULT_RGBA)).all(axis=1) & (model.geom_matid >= 0)
    alpha[plain] = model.mat_rgba[model.geom_matid[plain], 3]
    return alpha
