"""The OpenGL context of this process and its driver."""

import atexit
import logging

import mujoco

from services.libero.simulator import runtime
from vla_common import gl

log = logging.getLogger("services.libero")

_SOFTWARE_RENDERERS = ("llvmpipe", "softpipe", "swrast", "swiftshader")


class GlContext:
    """One OpenGL context, created when first needed and shared by every model in this process."""

    def __init__(self):
        self._context = None
        self.renderer = ""  # the driver's name, set when the context is created

    def make_current(self) -> None:
        """Create the context (once) and bind it to this thread. Raises RuntimeError if rendering is disabled."""
        if self._context is not None:
            return self._context.make_current()
        active = runtime.active()
        if active.gl.backend == "disable":
            raise RuntimeError("this process was configured with render 'none'; use cpu, gpu or auto to get images")
        self._context = mujoco.GLContext(640, 480)
        atexit.register(self.free)  # before MuJoCo ends EGL: freeing later prints errors
        self._context.make_current()
        self.renderer = _renderer_name()
        _check_renderer(self.renderer, active)

    def free(self) -> None:
        if self._context is not None:
            atexit.unregister(self.free)
            self._context.free()
            self._context = None


def _renderer_name() -> str:
    from OpenGL import GL

    name = GL.glGetString(GL.GL_RENDERER)
    return name.decode(errors="replace") if name else "unknown"


def _check_renderer(name: str, active: runtime.SimulatorConfig) -> None:
    """Warn if the CPU renders although there is a GPU: runs then take hours instead of minutes."""
    software = any(word in name.lower() for word in _SOFTWARE_RENDERERS)
    hoped = active.render == "gpu" or (active.render == "auto" and gl.has_nvidia_gpu())
    if software and hoped:
        log.warning("frames are rendered in software (%s) although this machine has a GPU; %s", name, gl._GPU_HINT)
