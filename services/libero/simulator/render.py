"""Draws camera pictures of a LIBERO scene on demand, pixel by pixel as robosuite's offscreen renderer draws them."""

import logging

import mujoco
import numpy as np
from OpenGL.error import GLError

from services.libero.simulator import gl, runtime
from services.libero.simulator.composite import Composite
from services.libero.simulator.stage import Stage

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
        self._gl = context
        self._gl.make_current()
        self._stage = Stage(model, size)
        self._composite = _composite(self._stage)
        self._proven = False

    def draw(self, camera: int, qpos: np.ndarray) -> np.ndarray:
        """Returns what camera number `camera` sees at `qpos`: uint8 [size, size, 3], bottom row first."""
        self._gl.make_current()
        self._stage.pose(camera, qpos)
        composed = self._composed(camera)
        if composed is not None and self._proven:
            return composed
        plain = self._stage.picture(camera)
        if composed is not None:
            self._prove(composed, plain)
        return plain

    def _composed(self, camera: int) -> np.ndarray | None:
        if self._composite is None:
            return None
        try:
            return self._composite.picture(camera)
        except GLError as error:
            log.warning(
                "%s cannot draw from layers; everything is drawn anew, which is slower: %s", self._gl.renderer, error
            )
            self._composite = None  # and what it holds goes with the context
            self._stage.bind()
            return None

    def _prove(self, composed: np.ndarray, plain: np.ndarray) -> None:
        """Compares the first picture put together with one drawn plainly: a driver's word is not enough."""
        self._proven = np.array_equal(composed, plain)
        if not self._proven:
            log.warning(
                "%s draws other pictures from layers; everything is drawn anew, which is slower", self._gl.renderer
            )
            self._drop_composite()

    def _drop_composite(self) -> None:
        if self._composite:
            self._composite.free()
            self._composite = None

    def free(self) -> None:
        self._gl.make_current()
        self._drop_composite()
        self._stage.free()


def _composite(stage: Stage) -> Composite | None:
    if not Composite.able(stage):
        return None
    try:
        return Composite(stage)
    except (RuntimeError, GLError) as error:  # an OpenGL before 4.0
        log.debug("everything is drawn anew: %s", error)
        stage.bind()
        return None
