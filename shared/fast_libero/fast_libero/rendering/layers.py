"""Save rendered geoms and restore them in later images, sample by sample, instead of rendering them again.

MuJoCo clears its buffer for every render, then draws the scene's geoms in order, each mesh by an OpenGL display list.
A `Layer` is a copy of that buffer (colour and depth, before its samples are averaged) and a display list that writes it
back with MuJoCo's own depth test. A geom whose mesh is that list stands for everything in the layer, and the image is
the same as if that had been rendered.
"""

import mujoco
from OpenGL import GL

_VERTEX = "#version 400 compatibility\nvoid main() { gl_Position = gl_Vertex; }"
_FRAGMENT = """#version 400 compatibility
uniform sampler2DMS color, depth;
void main() {
    ivec2 pixel = ivec2(gl_FragCoord.xy);
    gl_FragColor = texelFetch(color, pixel, gl_SampleID);
    gl_FragDepth = texelFetch(depth, pixel, gl_SampleID).r;
}
"""
_SPILL = 1  # pixels that llvmpipe draws beyond a scissor's left and lower edge if pixels have several samples
_COLOR_UNIT, _DEPTH_UNIT = 2, 3  # MuJoCo uses texture units 0 and 1
_COLOR_AND_DEPTH = GL.GL_COLOR_BUFFER_BIT | GL.GL_DEPTH_BUFFER_BIT


class CopyShader:
    """The shader that restores layers. Raises RuntimeError or a GLError if the driver does not support it."""

    def __init__(self) -> None:
        from OpenGL.GL import shaders

        parts = ((_VERTEX, GL.GL_VERTEX_SHADER), (_FRAGMENT, GL.GL_FRAGMENT_SHADER))
        self.program = shaders.compileProgram(*(shaders.compileShader(*part) for part in parts), validate=False)
        GL.glUseProgram(self.program)
        GL.glUniform1i(GL.glGetUniformLocation(self.program, "color"), _COLOR_UNIT)
        GL.glUniform1i(GL.glGetUniformLocation(self.program, "depth"), _DEPTH_UNIT)
        GL.glUseProgram(0)

    def free(self) -> None:
        GL.glDeleteProgram(self.program)


class Layer:
    """A copy of the offscreen buffer of `context`, [size, size] pixels, or of a part of it.

    `display_list` restores it; after `clip`, only what lies in that part is drawn. Raises GLError if it cannot be
    allocated.
    """

    def __init__(self, context: mujoco.MjrContext, shader: CopyShader, size: int):
        self._context, self._shader, self._size, self._area = context, shader, size, (0, 0, 0, 0)
        self._textures = [
            _samples_like(buffer, context.offSamples, size) for buffer in (context.offColor, context.offDepthStencil)
        ]
        self._framebuffer = GL.glGenFramebuffers(1)
        GL.glBindFramebuffer(GL.GL_FRAMEBUFFER, self._framebuffer)
        for part, texture in zip(
            (GL.GL_COLOR_ATTACHMENT0, GL.GL_DEPTH_STENCIL_ATTACHMENT), self._textures, strict=True
        ):
            GL.glFramebufferTexture2D(GL.GL_FRAMEBUFFER, part, GL.GL_TEXTURE_2D_MULTISAMPLE, texture, 0)
        GL.glBindFramebuffer(GL.GL_FRAMEBUFFER, context.offFBO)
        self.clip, self.display_list = GL.glGenLists(1), GL.glGenLists(1)
        self.limit((0, 0, size, size))

    def limit(self, area: tuple[int, int, int, int]) -> None:
        """Set the part that is copied: x, y from below, width and height in pixels."""
        if area == self._area:
            return
        self._area = area
        GL.glNewList(self.clip, GL.GL_COMPILE)
        GL.glScissor(*area)
        GL.glEnable(GL.GL_SCISSOR_TEST)
        GL.glEndList()
        # one triangle over the view; from behind, as in mirrors, it draws nothing
        GL.glNewList(self.display_list, GL.GL_COMPILE)
        GL.glCallList(self.clip)
        for unit, texture in zip((_COLOR_UNIT, _DEPTH_UNIT), self._textures, strict=True):
            GL.glActiveTexture(GL.GL_TEXTURE0 + unit)
            GL.glBindTexture(GL.GL_TEXTURE_2D_MULTISAMPLE, texture)
        GL.glActiveTexture(GL.GL_TEXTURE0)
        GL.glUseProgram(self._shader.program)
        GL.glBegin(GL.GL_TRIANGLES)
        for x, y in ((-1, -1), (3, -1), (-1, 3)):
            GL.glVertex4f(x, y, 0.5, 1.0)
        GL.glEnd()
        GL.glUseProgram(0)
        GL.glDisable(GL.GL_SCISSOR_TEST)
        GL.glEndList()

    def capture(self) -> None:
        """Copy MuJoCo's last render."""
        GL.glBindFramebuffer(GL.GL_READ_FRAMEBUFFER, self._context.offFBO)
        GL.glBindFramebuffer(GL.GL_DRAW_FRAMEBUFFER, self._framebuffer)
        x, y, width, height = self._area
        low = (max(0, at - _SPILL) for at in (x, y))
        high = (min(self._size, at + _SPILL) for at in (x + width, y + height))
        corners = (*low, *high)
        GL.glBlitFramebuffer(*corners, *corners, _COLOR_AND_DEPTH, GL.GL_NEAREST)
        GL.glBindFramebuffer(GL.GL_FRAMEBUFFER, self._context.offFBO)

    def free(self) -> None:
        GL.glDeleteLists(self.clip, 1)
        GL.glDeleteLists(self.display_list, 1)
        GL.glDeleteFramebuffers(1, [self._framebuffer])
        GL.glDeleteTextures(self._textures)


def _samples_like(renderbuffer: int, samples: int, size: int) -> int:
    """Return a new multisampled texture in the format of `renderbuffer`, as needed for copying."""
    GL.glBindRenderbuffer(GL.GL_RENDERBUFFER, renderbuffer)
    internal_format = GL.glGetRenderbufferParameteriv(GL.GL_RENDERBUFFER, GL.GL_RENDERBUFFER_INTERNAL_FORMAT)
    texture: int = GL.glGenTextures(1)
    GL.glBindTexture(GL.GL_TEXTURE_2D_MULTISAMPLE, texture)
    GL.glTexImage2DMultisample(GL.GL_TEXTURE_2D_MULTISAMPLE, samples, internal_format, size, size, True)
    GL.glBindTexture(GL.GL_TEXTURE_2D_MULTISAMPLE, 0)
    return texture
