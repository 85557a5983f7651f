"""Pose a model, fill MuJoCo's scene and render it as robosuite does."""

from collections.abc import Sequence

import mujoco
import numpy as np

from fast_libero.rendering.culling import Culling

# The fields that mjr_render reads, without those that it writes (transparent, camdist) or that are only names.
_GEOM_NUMBERS = ("type", "dataid", "matid", "texcoord", "emission", "specular", "shininess", "reflectance")
_GEOM_ARRAYS = ("size", "pos", "mat", "rgba")
_LIGHT_KIND = "directional" if hasattr(mujoco.MjvLight, "directional") else "type"  # mujoco 3.2; later ones
_LIGHT_NUMBERS = (_LIGHT_KIND, "castshadow", "cutoff", "exponent")
_LIGHT_ARRAYS = ("pos", "dir", "attenuation", "ambient", "diffuse", "specular")
_CAMERA_NUMBERS = (
    *("orthographic", "frustum_center", "frustum_width"),
    *("frustum_bottom", "frustum_top", "frustum_near", "frustum_far"),
)
_CAMERA_ARRAYS = ("pos", "forward", "up")
_WHITE = np.ones(4, np.float32)
# The parts of MjData that mjv_updateScene reads in LIBERO's scenes.
_PLACES = (
    *("xpos", "xmat", "xipos", "ximat", "geom_xpos", "geom_xmat", "site_xpos", "site_xmat"),
    *("cam_xpos", "cam_xmat", "light_xpos", "light_xdir"),
)


def placement(data: mujoco.MjData) -> list[np.ndarray]:
    """Return a copy of where everything of a simulation was at its last forward pass, for `Stage.place`."""
    return [getattr(data, name).copy() for name in _PLACES]


class Stage:
    """A scene of `model` and its offscreen buffer, `size` × `size` pixels. Needs a current OpenGL context."""

    def __init__(self, model: mujoco.MjModel, size: int):
        self.model, self.size, self.data = model, size, mujoco.MjData(model)
        model.vis.global_.offwidth = model.vis.global_.offheight = size
        self.context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50)
        self.bind()
        self.scene = mujoco.MjvScene(model, maxgeom=1000)
        self._option = mujoco.MjvOption()
        self._option.geomgroup[0] = 0  # collision shapes stay hidden
        self.culling = Culling(model, np.flatnonzero(self.visible()))
        self._perturb = mujoco.MjvPerturb()
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._viewport = mujoco.MjrRect(0, 0, size, size)

    def bind(self) -> None:
        """Make OpenGL draw into this stage's buffer."""
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self.context)

    def visible(self) -> np.ndarray:
        """Return the geoms in a visible group: bool [ngeom]."""
        return np.asarray(self._option.geomgroup, bool)[self.model.geom_group]

    def pose(self, camera: int, qpos: np.ndarray) -> None:
        """Pose the model at `qpos` and select camera number `camera`."""
        self.data.qpos[:] = qpos
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_comPos(self.model, self.data)
        mujoco.mj_camlight(self.model, self.data)
        self._camera.fixedcamid = camera

    def place(self, camera: int, placed: list[np.ndarray]) -> None:
        """Pose the model as in `placement` and select camera number `camera`."""
        for name, values in zip(_PLACES, placed, strict=True):
            getattr(self.data, name)[:] = values
        self._camera.fixedcamid = camera

    def update_scene(self, hidden: np.ndarray, reflect: bool, first: Sequence[int] = ()) -> None:
        """Fill the scene with the display lists `first`, then all geoms except `hidden` (bool [ngeom]).

        reflect: enables mirrors.
        """
        self.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = reflect
        what = self.model, self.data, self._option, self._perturb
        everything = mujoco.mjtCatBit.mjCAT_ALL
        self.culling.hide(hidden)
        try:
            mujoco.mjv_updateScene(*what, self._camera, everything, self.scene)
            if first:  # the geoms again, behind them
                self.scene.ngeom = len(first)
                mujoco.mjv_addGeoms(*what, everything, self.scene)
        finally:
            self.culling.show_all()
        for geom, display_list in zip(self.scene.geoms, first, strict=False):
            mujoco.mjv_initGeom(geom, mujoco.mjtGeom.mjGEOM_MESH, np.zeros(3), np.zeros(3), np.eye(3).ravel(), _WHITE)
            geom.dataid, geom.objid = display_list - self.context.baseMesh, -1  # of no geom of the model
        while self.scene.ngeom and self.scene.geoms[self.scene.ngeom - 1].rgba[3] <= 0:
            self.scene.ngeom -= 1  # sites that robosuite hides by opacity; MuJoCo would draw them

    def content(self) -> bytes:
        """Return everything that the scene's image depends on: equal contents give equal images."""
        scene = self.scene
        parts = (
            (_GEOM_NUMBERS, _GEOM_ARRAYS, scene.geoms[: scene.ngeom]),
            (_LIGHT_NUMBERS, _LIGHT_ARRAYS, scene.lights[: scene.nlight]),
            (_CAMERA_NUMBERS, _CAMERA_ARRAYS, scene.camera),
        )
        numbers = [getattr(each, name) for names, _, many in parts for each in many for name in names]
        arrays = [getattr(each, name).tobytes() for _, names, many in parts for each in many for name in names]
        return b"".join((np.array([scene.ngeom, *numbers], np.float64).tobytes(), scene.flags.tobytes(), *arrays))

    def draw(self) -> None:
        """Render the scene."""
        mujoco.mjr_render(self._viewport, self.scene, self.context)

    def read(self) -> np.ndarray:
        """Return the last render: uint8 [size, size, 3], bottom row first."""
        pixels = np.empty((self.size, self.size, 3), np.uint8)
        mujoco.mjr_readPixels(pixels, None, self._viewport, self.context)
        return pixels

    def render(self, camera: int) -> np.ndarray:
        """Return a full render of `camera` at the current pose."""
        self.update_scene(self.culling.invisible(self.data, camera), self.culling.sees_mirror(self.data, camera))
        self.draw()
        return self.read()

    def free(self) -> None:
        self.context.free()
