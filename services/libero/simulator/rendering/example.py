"""The worked example of README.md: one frame of libero_goal rendered from layers, with every step recorded.

    PYTHONPATH=.:shared/common:shared/contract python -m services.libero.simulator.rendering.example [STEPS.png]

prints the geoms of each step and the samples of one pixel, and saves the steps side by side as an image.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

TASK, CAMERA, STEPS = ("libero_goal", 0), "agentview", 30
ACTION = (0.3, 0.2, -0.8, 0.0, 0.0, 0.0, -1.0)  # forward and down, until the hand is over the table
NEAR_M, FAR_M = 0.5, 3.0  # white and black in the depth image
ROUNDS = 9
_SAMPLE = """#version 400 compatibility
uniform sampler2DMS color, depth;
uniform int number;
void main() {
    ivec2 pixel = ivec2(gl_FragCoord.xy);
    gl_FragColor = vec4(texelFetch(color, pixel, number).rgb, texelFetch(depth, pixel, number).r);
}
"""


class Step(NamedTuple):
    """One call of `mjr_render`: the bodies of its geoms, their meshes' triangles, and every sample."""

    bodies: list[str]
    triangles: int
    color: np.ndarray  # uint8 [size, size, samples, 3], top row first as all below
    depth: np.ndarray  # float32 [size, size, samples], metres from the camera's plane


class Frame(NamedTuple):
    """One frame's steps, and its image rendered both ways."""

    static: Step  # the static layer
    rest: Step  # moving geoms, and static ones that must be drawn again; without the layer
    result: Step  # the same over the layer
    full: Step  # a full render
    layered_image: np.ndarray  # uint8 [size, size, 3]
    full_image: np.ndarray


def pose(env) -> None:
    """Step `env` to the example's frame."""
    from services.libero.simulator import suites

    task = suites.load_suite(TASK[0]).tasks[TASK[1]]
    env.load_task(task)
    env.reset(0, suites.init_states(task)[0])
    for _ in range(STEPS):
        env.step(ACTION)


def draw(env) -> Frame:
    """Return the current frame of `env`, rendered like the first one of an episode, step by step."""
    env.render(CAMERA)
    stage, compositor = env._renderer._stage, env._renderer._compositor
    camera, steps = stage.model.camera(CAMERA).id, []
    compositor._static_layers.clear()
    stage.draw = lambda: (type(stage).draw(stage), steps.append(_capture_step(stage)))
    try:
        layered = compositor.render(camera)
        stage.scene.geoms[0].dataid = _empty_list() - stage.context.baseMesh
        stage.draw()
        full = stage.render(camera)
    finally:
        del stage.draw
    static, result, rest, everything = steps
    return Frame(static, rest, result, everything, layered[::-1], full[::-1])


def by_depth(frame: Frame) -> np.ndarray:
    """Return layer and rest composed by depth: uint8 [size, size, samples, 3]."""
    over = frame.rest.depth <= frame.static.depth  # MuJoCo's depth test: the later of two equal depths is visible
    return np.where(over[..., None], frame.rest.color, frame.static.color)


def edge(frame: Frame) -> tuple[int, int]:
    """Return row and column of a pixel with samples of both: the one whose samples differ most."""
    over = (frame.rest.depth <= frame.static.depth).mean(axis=2) == 0.5
    spread = np.ptp(frame.result.color.astype(int), axis=2).sum(axis=2)
    return tuple(int(part) for part in np.unravel_index((over * spread).argmax(), over.shape))


def _capture_step(stage) -> Step:
    """Return the stage's last render as a step."""
    model, scene = stage.model, stage.scene
    geoms = [geom.objid for geom in scene.geoms[: scene.ngeom] if geom.dataid < 2 * model.nmesh]  # no layer
    meshes = model.geom_dataid[geoms]
    samples = _samples(stage)[::-1]
    return Step(
        [model.body(body).name for body in model.geom_bodyid[geoms]],
        int(model.mesh_facenum[meshes[meshes >= 0]].sum()),
        np.rint(samples[..., :3] * 255).astype(np.uint8),
        _metres(model, samples[..., 3]),
    )


def _metres(model, depth: np.ndarray) -> np.ndarray:
    """Return the distances (m) of depth buffer values, which run from 1 (near) to 0 (far) in MuJoCo."""
    near, far = (edge * model.stat.extent for edge in (model.vis.map.znear, model.vis.map.zfar))
    return (near * far / (near + depth.astype(np.float64) * (far - near))).astype(np.float32)


def _samples(stage) -> np.ndarray:
    """Return every sample of the last render: float32 [size, size, samples, 4], red, green, blue, depth."""
    from OpenGL import GL

    from services.libero.simulator.rendering import layers

    size, shader = stage.size, layers.CopyShader(_SAMPLE)
    layer = layers.Layer(stage.context, shader, size)
    layer.capture()
    GL.glPushAttrib(GL.GL_ALL_ATTRIB_BITS)
    target, texture = GL.glGenFramebuffers(1), GL.glGenTextures(1)
    GL.glBindTexture(GL.GL_TEXTURE_2D, texture)
    GL.glTexImage2D(GL.GL_TEXTURE_2D, 0, GL.GL_RGBA32F, size, size, 0, GL.GL_RGBA, GL.GL_FLOAT, None)
    GL.glBindFramebuffer(GL.GL_FRAMEBUFFER, target)
    GL.glFramebufferTexture2D(GL.GL_FRAMEBUFFER, GL.GL_COLOR_ATTACHMENT0, GL.GL_TEXTURE_2D, texture, 0)
    for state in (GL.GL_DEPTH_TEST, GL.GL_BLEND, GL.GL_CULL_FACE):
        GL.glDisable(state)
    buffers = []
    for number in range(stage.context.offSamples):
        GL.glUseProgram(shader.program)
        GL.glUniform1i(GL.glGetUniformLocation(shader.program, "number"), number)
        GL.glCallList(layer.display_list)
        buffers.append(GL.glReadPixels(0, 0, size, size, GL.GL_RGBA, GL.GL_FLOAT, outputType=np.float32))
    GL.glDeleteFramebuffers(1, [target])
    GL.glDeleteTextures([texture])
    GL.glPopAttrib()
    layer.free()
    shader.free()
    stage.bind()
    return np.stack([part.reshape(size, size, 4) for part in buffers], axis=2)


def _empty_list() -> int:
    from OpenGL import GL

    number = GL.glGenLists(1)
    GL.glNewList(number, GL.GL_COMPILE)
    GL.glEndList()
    return number


def table(frame: Frame) -> str:
    """Return the number of geoms and triangles of each step as rows of README.md's table."""
    steps = {"static layer, once": frame.static, "the rest, each frame": frame.rest, "full render": frame.full}
    return "\n".join(f"| {name} | {len(step.bodies)} | {step.triangles:,} |" for name, step in steps.items())


def pixel(frame: Frame) -> str:
    """Return one pixel's samples as rows of README.md's table: colour and depth of layer and rest, result."""
    row, column = edge(frame)
    rows = []
    for number in range(frame.result.color.shape[2]):
        layer, rest = ((step.color[row, column, number], step.depth[row, column, number]) for step in frame[:2])
        result = frame.result.color[row, column, number]
        rows.append(f"| {number} | {_sample(*layer)} | {_sample(*rest)} | {_sample(result)} |")
    return "\n".join([*rows, f"| pixel ({row}, {column}) | | | {_sample(frame.layered_image[row, column])} |"])


def _sample(color: np.ndarray, depth: float | None = None) -> str:
    text = " ".join(map(str, color))
    return text if depth is None else f"{text} at {depth:.2f} m"


def side_by_side(frame: Frame) -> np.ndarray:
    """Return the steps side by side: layer, its depth, the rest, the result; uint8 [size, 4 size, 3]."""
    grey = 255 * np.clip((FAR_M - frame.static.depth) / (FAR_M - NEAR_M), 0, 1)
    samples = (frame.static.color, np.repeat(grey[..., None], 3, axis=-1), frame.rest.color)
    return np.concatenate([*(np.rint(part.mean(axis=2)) for part in samples), frame.layered_image], 1).astype(np.uint8)


def cpu_ms(env) -> dict[str, float]:
    """Return the median CPU time (ms) per image, of full renders and from layers, measured alternately."""
    stage, compositor = env._renderer._stage, env._renderer._compositor
    camera = stage.model.camera(CAMERA).id
    variants, spent = {"full": stage.render, "layered": compositor.render}, {"full": [], "layered": []}
    for _ in range(ROUNDS):
        for name, render in variants.items():
            start = time.thread_time()
            render(camera)
            spent[name].append((time.thread_time() - start) * 1e3)
    return {name: float(np.median(values)) for name, values in spent.items()}


def main(target: str | None) -> None:
    """Render the example with the project's own assets and print its figures."""
    from PIL import Image

    from services.libero import assets
    from services.libero.simulator import runtime
    from vla_common.volume import Volume

    with tempfile.TemporaryDirectory() as work:
        runtime.configure(assets.resolve("kit", Volume().root).path, Path(work), "cpu")
        from services.libero.simulator.env import LiberoEnv

        env = LiberoEnv(runtime.active().assets)
        pose(env)
        frame = draw(env)
        print(table(frame), pixel(frame), sep="\n\n")
        print("\nCPU ms:", *(f"{name} {value:.1f}" for name, value in cpu_ms(env).items()), env._gl.renderer)
        if target:
            Image.fromarray(side_by_side(frame)).save(target, optimize=True)
        env.close()


if __name__ == "__main__":
    main(*sys.argv[1:2] or [None])
