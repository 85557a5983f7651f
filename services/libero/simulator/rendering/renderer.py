"""Render camera images of a LIBERO scene on demand, pixel-identical to robosuite's offscreen renderer."""

import logging

import mujoco
import numpy as np
from OpenGL.error import GLError

from services.libero.simulator.rendering.compositor import Compositor
from services.libero.simulator.rendering.context import GlContext
from services.libero.simulator.rendering.stage import Stage

log = logging.getLogger("services.libero")


class SceneRenderer:
    """Renders one model's cameras at `size` × `size` pixels."""

    def __init__(self, context: GlContext, model: mujoco.MjModel, size: int):
        self._gl = context
        self._gl.make_current()
        self._stage = Stage(model, size)
        self._compositor = _compositor(self._stage)
        self._verified = False

    def render(self, camera: int, qpos: np.ndarray) -> np.ndarray:
        """Return the image of camera number `camera` at `qpos`: uint8 [size, size, 3], bottom row first."""
        self._gl.make_current()
        self._stage.pose(camera, qpos)
        layered = self._render_layered(camera)
        if layered is not None and self._verified:
            return layered
        full = self._stage.render(camera)
        if layered is not None:
            self._verify(layered, full)
        return full

    def _render_layered(self, camera: int) -> np.ndarray | None:
        if self._compositor is None:
            return None
        try:
            return self._compositor.render(camera)
        except GLError as error:
            log.warning(
                "%s cannot render from layers; using full renders, which are slower: %s", self._gl.renderer, error
            )
            self._compositor = None  # its resources are freed with the context
            self._stage.bind()
            return None

    def _verify(self, layered: np.ndarray, full: np.ndarray) -> None:
        """Compare the first layered image with a full render, to detect driver differences."""
        self._verified = np.array_equal(layered, full)
        if not self._verified:
            log.warning(
                "%s renders different images from layers; using full renders, which are slower", self._gl.renderer
            )
            self._drop_compositor()

    def _drop_compositor(self) -> None:
        if self._compositor:
            self._compositor.free()
            self._compositor = None

    def free(self) -> None:
        self._gl.make_current()
        self._drop_compositor()
        self._stage.free()


def _compositor(stage: Stage) -> Compositor | None:
    if not Compositor.supports(stage):
        return None
    try:
        return Compositor(stage)
    except (RuntimeError, GLError) as error:  # an OpenGL before 4.0
        log.debug("using full renders: %s", error)
        stage.bind()
        return None
