"""The OpenGL renderer: `python -m vla_common.driver auto` prints its name and version.

It runs in a process of its own: MuJoCo binds to one device on import, and an evaluator renders nothing itself.
"""

from __future__ import annotations

import os
import subprocess
import sys

from vla_common import gl

ASK_S = 120.0  # a driver that has not answered by then never will


def ask(render: str) -> str:
    """Return OpenGL's renderer and version for a render mode, such as "llvmpipe (…), 4.5 … Mesa …".

    Raises ValueError with the reason if nothing can render.
    """
    command = [sys.executable, "-m", "vla_common.driver", render]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S)
    except subprocess.TimeoutExpired:
        raise ValueError(f"the graphics driver has not answered in {ASK_S:.0f} s; try --render cpu") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"its process ended with code {done.returncode}"]
        raise ValueError(f"cannot render with --render {render}: {lines[-1]}")
    return done.stdout.splitlines()[-1]


def main(render: str) -> None:
    """Print the renderer and its version."""
    try:
        choice = gl.choose(render)
        gl.bind(choice)
        print(choice.note, file=sys.stderr)  # why it is the CPU: for the doctor
    except (RuntimeError, ValueError) as error:
        sys.exit(str(error))
    import mujoco
    from OpenGL import GL

    context = mujoco.GLContext(16, 16)
    context.make_current()
    print(", ".join(GL.glGetString(name).decode(errors="replace") for name in (GL.GL_RENDERER, GL.GL_VERSION)))
    sys.stdout.flush()
    os._exit(0)  # some drivers crash while they are unloaded


if __name__ == "__main__":
    main(sys.argv[1])
