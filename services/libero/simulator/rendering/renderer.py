"""Render camera images of a LIBERO scene on demand, pixel-identical to robosuite's offscreen renderer."""

import atexit
import logging

import mujoco
import numpy as np
from OpenGL import GL
from OpenGL.error import GLError

from services.libero.simulator import runtime
from services.libero.simulator.rendering.compositor import Compositor
from services.libero.simulator.rendering.stage import Stage
from vla_common import gl

log = logging.getLogger("services.libero")

_SOFTWARE_RENDERERS = ("llvmpipe", "softpipe", "swrast", "swiftshader")


class GlContext:
    """One OpenGL context, created when first needed and shared by every model in this process."""

    def __init__(self):
        self._context = None
        self.renderer = ""  # the driver's name, set when the context is created

    def make_current(self) -> None:
        """Create the context (once) and bind it to this thread. Raises RuntimeError if rendering is disabled.

        Warns if the CPU renders although there is a GPU: runs then take hours instead of minutes.
        """
        if self._context is not None:
            return self._context.make_current()
        active = runtime.active()
        if active.gl.backend == "disable":
            raise RuntimeError("this process was configured with render 'none'; use cpu, gpu or auto to get images")
        self._context = mujoco.GLContext(640, 480)
        atexit.register(self.free)  # before MuJoCo ends EGL: freeing later prints errors
        self._context.make_current()
        name = GL.glGetString(GL.GL_RENDERER)
        self.renderer = name.decode(errors="replace") if name else "unknown"
        is_software = any(word in self.renderer.lower() for word in _SOFTWARE_RENDERERS)
        if is_software and (active.render == "gpu" or (active.render == "auto" and gl.has_nvidia_gpu())):
            log.warning(
                "frames are rendered in software (%s) although this machine has a GPU; %s", self.renderer, gl._GPU_HINT
            )

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
        """Return the image of camera number `camera` at `qpos`: uint8 [size, size, 3], bottom row first.

        The first image from layers is compared with a full render, to detect driver differences.
        """
        self._gl.make_current()
        self._stage.pose(camera, qpos)
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
