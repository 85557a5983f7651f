"""Draws camera pictures of a LIBERO scene on demand, pixel by pixel as robosuite's offscreen renderer draws them."""

import logging

import mujoco
import numpy as np

from services.libero.simulator import gl, runtime
from services.libero.simulator.culling import Culling

log = logging.getLogger("services.libero")

_SOFTWARE_RENDERERS = ("llvmpipe", "softpipe", "swrast", "swiftshader")


class GlContext:
    """One OpenGL context, made when first needed and shared by every model that this process draws."""

    def __init__(self):
        self._context = None
        self.renderer = ""  # the driver's own name, known once made

    def make_current(self) -> None:
        """Makes the context (once) and binds it to this thread. Raises RuntimeError when nothing can draw here."""
        if self._context is not None:
            return self._context.make_current()
        active = runtime.active()
        if active.gl.backend == "disable":
            raise RuntimeError(
                "this process was configured with render 'none'; choose cpu, gpu or auto to get pictures"
            )
        self._context = mujoco.GLContext(640, 480)
        self._context.make_current()
        self.renderer = _renderer_name()
        _check_renderer(self.renderer, active)

    def free(self) -> None:
        if self._context is not None:
            self._context.free()
            self._context = None


def _renderer_name() -> str:
    from OpenGL import GL

    name = GL.glGetString(GL.GL_RENDERER)
    return name.decode(errors="replace") if name else "unknown"


def _check_renderer(name: str, active: runtime.Runtime) -> None:
    """Says it aloud when a GPU was hoped for and the CPU draws: such runs take hours instead of minutes."""
    software = any(word in name.lower() for word in _SOFTWARE_RENDERERS)
    hoped = active.render == "gpu" or (active.render == "auto" and gl.has_nvidia_gpu())
    if software and hoped:
        log.warning("frames are drawn in software (%s) although this machine has a GPU; %s", name, gl._GPU_HINT)


class SceneRenderer:
    """Draws one model's cameras at `size` × `size` pixels."""

    def __init__(self, context: GlContext, model: mujoco.MjModel, size: int):
        self._gl, self._model, self._size = context, model, size
        self._view = mujoco.MjData(model)
        self._culling = Culling(model)
        self._gl.make_current()
        model.vis.global_.offwidth = model.vis.global_.offheight = size
        self._mjr = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._mjr)
        self._scene = mujoco.MjvScene(model, maxgeom=1000)
        self._option = mujoco.MjvOption()
        self._option.geomgroup[0] = 0  # collision shapes stay hidden
        self._perturb = mujoco.MjvPerturb()
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._viewport = mujoco.MjrRect(0, 0, size, size)

    def draw(self, camera: int, qpos: np.ndarray) -> np.ndarray:
        """Returns what camera number `camera` sees at `qpos`: uint8 [size, size, 3], bottom row first."""
        self._gl.make_current()
        view = self._view
        view.qpos[:] = qpos
        mujoco.mj_kinematics(self._model, view)
        mujoco.mj_comPos(self._model, view)
        mujoco.mj_camlight(self._model, view)
        self._camera.fixedcamid = camera
        self._update_scene(camera)
        mujoco.mjr_render(self._viewport, self._scene, self._mjr)
        pixels = np.empty((self._size, self._size, 3), np.uint8)
        mujoco.mjr_readPixels(pixels, None, self._viewport, self._mjr)
        return pixels

    def _update_scene(self, camera: int) -> None:
        everything = mujoco.mjtCatBit.mjCAT_ALL
        self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = self._culling.mirrors(self._view, camera)
        self._culling.hide(self._culling.outside(self._view, camera))
        try:
            mujoco.mjv_updateScene(
                self._model, self._view, self._option, self._perturb, self._camera, everything, self._scene
            )
        finally:
            self._culling.show_all()

    def free(self) -> None:
        self._gl.make_current()
        self._mjr.free()
