"""The renderer in robosuite's place: what `MjSim.render` calls. Import it only after `startup.prepare`."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import mujoco
import numpy as np
from robosuite.utils import binding_utils

from fast_libero.rendering.renderer import GlContext, SceneRenderer
from fast_libero.rendering.stage import placement

_gl: dict[tuple[int, int], GlContext] = {}  # of a process and device: the OpenGL context of all environments


class RenderContext:
    """Draws square colour images from layers, and everything else with robosuite's MjRenderContextOffscreen."""

    offscreen = True

    def __init__(self, sim: Any, device: int):
        sim.forward()  # as the original does; the last bits of the solver's next solution depend on it
        sim.add_render_context(self)
        self.vopt = mujoco.MjvOption()  # robosuite sets its geomgroup
        self.model, self.data, self._device = sim.model, sim.data, device
        self._renderers: dict[int, SceneRenderer] = {}
        self._original: Any = None
        self._request: tuple[int, int, int | None, bool] = (0, 0, None, False)

    def render(self, width: int, height: int, camera_id: int | None = None, segmentation: bool = False) -> None:
        """Note what `read_pixels` is to return."""
        self._request = width, height, camera_id, segmentation

    def read_pixels(self, width: int, height: int, depth: bool = False, segmentation: bool = False) -> Any:
        """Return the image: uint8 [height, width, 3], bottom row first, or what robosuite returns for the flags."""
        camera = self._request[2]
        plain = not (depth or segmentation) and width == height and tuple(self.vopt.geomgroup[:2]) == (0, 1)
        if plain and camera is not None and camera >= 0:
            return self.draw(width, camera, placement(self.data._data))
        original = self._robosuites()
        original.gl_ctx.make_current()
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, original.con)
        original.vopt.geomgroup[:] = self.vopt.geomgroup
        original.render(*self._request)
        return original.read_pixels(width, height, depth, segmentation)

    def draw(self, size: int, camera: int, placed: list[np.ndarray]) -> np.ndarray:
        """Return the image of a camera at a `placement`: uint8 [size, size, 3], bottom row first."""
        if size not in self._renderers:
            device = self._device
            context = _gl.setdefault(
                (os.getpid(), device), GlContext(lambda: binding_utils.GLContext(640, 480, device))
            )
            self._renderers[size] = SceneRenderer(context, self.model._model, size)
        return self._renderers[size].render_placed(camera, placed)

    def _robosuites(self) -> Any:
        """Return robosuite's own context, made so that the simulation does not notice."""
        if self._original is None:
            sim = types.SimpleNamespace(
                forward=lambda: None, add_render_context=lambda _: None, model=self.model, data=self.data
            )
            self._original = binding_utils.MjRenderContextOffscreen(sim, device_id=self._device)
        return self._original

    def upload_texture(self, tex_id: int) -> None:
        """Draw with the model's changed texture from now on."""
        self.free()
        if self._original is not None:
            self._original.upload_texture(tex_id)

    def free(self) -> None:
        """Free what was made for drawing; the next image makes it again."""
        for renderer in self._renderers.values():
            renderer.free()
        self._renderers.clear()

    def __del__(self) -> None:  # of an environment that was not closed
        if not sys.is_finalizing():
            self.free()
