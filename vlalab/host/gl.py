"""Headless OpenGL: check the system's libraries, and install them.

MuJoCo renders through EGL: a GPU's driver, or Mesa's llvmpipe on the CPU.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys

from vlalab.host.console import LabError, status

PACKAGES = ("libegl1", "libegl-mesa0", "libgl1-mesa-dri", "libgl1", "libgles2", "libglvnd0", "libglib2.0-0")

# Queries EGL's devices: without a driver the list is empty. Runs in a separate process, because drivers may print or
# crash.
COUNT_EGL_DEVICES = """
import ctypes
egl = ctypes.CDLL("libEGL.so.1")
egl.eglGetProcAddress.restype = ctypes.c_void_p
query = egl.eglGetProcAddress(b"eglQueryDevicesEXT")
count = ctypes.c_int(0)
if query:
    ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(query)(0, None, ctypes.byref(count))
print(count.value)
"""


def egl_devices() -> int:
    """Return the number of devices that EGL can render on (Mesa's CPU renderer counts as one)."""
    process = subprocess.run([sys.executable, "-c", COUNT_EGL_DEVICES], capture_output=True, text=True)
    return int(process.stdout) if process.returncode == 0 and process.stdout.strip().isdigit() else 0


def missing() -> str | None:
    """Return what headless rendering lacks on this machine, as a message, or None if it works."""
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        return "libEGL.so.1 cannot be loaded"
    return None if egl_devices() else "libEGL.so.1 has no driver (neither a GPU's nor Mesa's)"


def ensure() -> None:
    """Install missing libraries for headless rendering, or raise LabError with the command that installs them."""
    if (lack := missing()) is None:
        return
    command = f"apt-get install -y {' '.join(PACKAGES)}"
    if not shutil.which("apt-get"):
        raise LabError(f"headless rendering: {lack}. Install the Mesa EGL libraries (Debian: {command})")
    if os.geteuid() != 0:
        raise LabError(f"headless rendering: {lack}. Run: sudo {command}")
    with status(f"headless rendering: {lack}; installing Mesa with apt-get"):
        script = f"apt-get update -q; apt-get install -y -q --no-install-recommends {' '.join(PACKAGES)}"
        variables = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(
            ["/bin/sh", "-c", script], env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    if done.returncode != 0 or (lack := missing()):
        raise LabError(f"headless rendering: {lack} after '{command}':\n{done.stderr.strip()}")
