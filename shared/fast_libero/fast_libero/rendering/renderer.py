"""Render camera images of a LIBERO scene on demand, pixel-identical to robosuite's offscreen renderer."""

import atexit
import logging
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
from OpenGL import GL
from OpenGL.error import GLError

from fast_libero.rendering.compositor import Compositor
from fast_libero.rendering.stage import Stage

log = logging.getLogger("fast_libero")


class GlContext:
    """One OpenGL context, created by `make` when first needed and shared by every model in this process."""

    def __init__(self, make: Callable[[], Any] | None = None):
        self._make = make or (lambda: mujoco.GLContext(640, 480))
        self._context: Any = None
        self.renderer = ""  # the driver's name, set when the context is created

    def make_current(self) -> None:
        """Create the context (once) and bind it to this thread."""
        if self._context is not None:
            self._context.make_current()
            return
        self._context = self._make()
        atexit.register(self.free)  # before MuJoCo ends EGL: freeing later prints errors
        self._context.make_current()
        name = GL.glGetString(GL.GL_RENDERER)
        self.renderer = name.decode(errors="replace") if name else "unknown"

    def free(self) -> None:
        if self._context is not None:
            atexit.unregister(self.free)
            self._context.free()
            self._context = None


class SceneRenderer:
    """Renders one model's cameras at `size` × `size` pixels."""

    def __init__(self, context: GlContext, model: mujoco.MjModel, size: int):
        self._gl = context
        self._gl.make_current()
        self._stage = Stage(model, size)
        self._compositor = None
        self._verified = False
        try:
            if Compositor.supports(self._stage):
                self._compositor = Compositor(self._stage)
        except (RuntimeError, GLError) as error:  # an OpenGL before 4.0
            log.debug("using full renders: %s", error)
            self._stage.bind()

    def render(self, camera: int, qpos: np.ndarray) -> np.ndarray:
        """Return the image of camera number `camera` at `qpos`: uint8 [size, size, 3], bottom row first."""
        self._stage.pose(camera, qpos)
        return self._render(camera)

    def render_placed(self, camera: int, placed: list[np.ndarray]) -> np.ndarray:
        """Return the same of a `stage.placement`."""
        self._stage.place(camera, placed)
        return self._render(camera)

    def _render(self, camera: int) -> np.ndarray:
        """Render at the stage's pose. The first image from layers is compared with a full render: drivers differ."""
        self._gl.make_current()
        self._stage.bind()  # another renderer of this process may have drawn since
        layered = None
        if self._compositor is not None:
            try:
                layered = self._compositor.render(camera)
            except GLError as error:
                log.warning(
                    "%s cannot render from layers; using full renders, which are slower: %s", self._gl.renderer, error
                )
                self._compositor = None  # its resources are freed with the context
                self._stage.bind()
        if layered is not None and self._verified:
            return layered
        full = self._stage.render(camera)
        if layered is not None:
            self._verified = np.array_equal(layered, full)
            if not self._verified:
                log.warning(
                    "%s renders different images from layers; using full renders, which are slower", self._gl.renderer
                )
                self._drop_compositor()
        return full

    def _drop_compositor(self) -> None:
        if self._compositor:
            self._compositor.free()
            self._compositor = None

    def free(self) -> None:
        self._gl.make_current()
        self._drop_compositor()
        self._stage.free()
