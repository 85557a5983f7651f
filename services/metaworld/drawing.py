"""Render a scene bit-identically to gymnasium's renderer, without its depth pass."""

from __future__ import annotations

import mujoco
import numpy as np

MAX_GEOMS = 1000  # gymnasium's

_context: mujoco.GLContext | None = None  # of this process, shared by every model that it draws


def _make_current() -> None:
    global _context
    if mujoco.gl_context is None or not hasattr(mujoco, "GLContext"):
        raise RuntimeError("this process was configured with render 'none'; use cpu, gpu or auto to get images")
    if _context is None:
        _context = mujoco.GLContext(480, 480)
    _context.make_current()


class ModelRenderer:
    """Renders one model at `size` × `size` pixels; OpenGL is initialized for the first image."""

    def __init__(self, model: mujoco.MjModel, size: int):
        self._model, self._size, self._gl = model, size, None

    def draw(self, camera: str, data: mujoco.MjData) -> np.ndarray:
        """Return a camera's image: uint8 [size, size, 3], bottom row first."""
        _make_current()
        if self._gl is None:
            self._model.vis.global_.offwidth = self._model.vis.global_.offheight = self._size
            self._gl = mujoco.MjrContext(self._model, mujoco.mjtFontScale.mjFONTSCALE_150)
            mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._gl)
            self._scene = mujoco.MjvScene(self._model, MAX_GEOMS)
            self._option, self._perturb, self._camera = mujoco.MjvOption(), mujoco.MjvPerturb(), mujoco.MjvCamera()
            self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
            self._viewport = mujoco.MjrRect(0, 0, self._size, self._size)
        self._camera.fixedcamid = self._model.camera(camera).id
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, data, self._option, self._perturb, self._camera, everything, self._scene)
        mujoco.mjr_render(self._viewport, self._scene, self._gl)
        pixels = np.empty((self._size, self._size, 3), np.uint8)
        mujoco.mjr_readPixels(pixels, None, self._viewport, self._gl)
        return pixels

    def free(self) -> None:
        """Free the textures and buffers of the model."""
        if self._gl is not None:
            _make_current()
            self._gl.free()
            self._gl = None
