"""Headless OpenGL: check the system's libraries, and install them.

MuJoCo renders through EGL (a GPU's driver, or Mesa's llvmpipe on the CPU), else through OSMesa.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys

from vlalab.host.console import LabError, log_info, status

PACKAGES = (
    "libegl1", "libegl-mesa0", "libgl1-mesa-dri", "libgl1", "libgles2", "libglvnd0", "libosmesa6", "libglib2.0-0",
)  # fmt: skip

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


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def egl_devices() -> int:
    """Return the number of devices that EGL can render on (Mesa's CPU renderer counts as one)."""
    process = subprocess.run([sys.executable, "-c", COUNT_EGL_DEVICES], capture_output=True, text=True)
    return int(process.stdout) if process.returncode == 0 and process.stdout.strip().isdigit() else 0


def missing() -> str | None:
    """Return what headless rendering lacks on this machine, as a message, or None if it works."""
    if _loads("libOSMesa.so.8") and _loads("libGL.so.1"):
        return None
    if not _loads("libEGL.so.1"):
        return "libEGL.so.1 and libOSMesa.so.8 cannot be loaded"
    if egl_devices() == 0:
        return "libEGL.so.1 has no driver (neither a GPU's nor Mesa's)"
    return None


def ensure() -> None:
    """Install missing libraries for headless rendering, or raise LabError with the command that installs them."""
    lack = missing()
    if lack is None:
        return
    command = f"apt-get install -y {' '.join(PACKAGES)}"
    if not shutil.which("apt-get"):
        raise LabError(f"headless rendering: {lack}. Install the Mesa EGL libraries (Debian: {command})")
    if os.geteuid() != 0:
        raise LabError(f"headless rendering: {lack}. Run: sudo {command}")
    with status(f"headless rendering: {lack}; installing Mesa with apt-get"):
        _install()
    if still := missing():
        raise LabError(f"headless rendering does not work after '{command}': {still}")


def _install() -> None:
    def apt(*arguments: str) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        return subprocess.run(arguments, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True)

    install = ("apt-get", "install", "-y", "-q", "--no-install-recommends")
    if apt(*install, *PACKAGES).returncode == 0:
        return
    log_info("refreshing the package lists")
    apt("apt-get", "update", "-q")
    available = [
        name for name in PACKAGES if apt("apt-cache", "show", name).returncode == 0
    ]  # newer ones drop libosmesa6
    done = apt(*install, *available)
    if done.returncode != 0:
        raise LabError(f"apt-get could not install {' '.join(available)}:\n{done.stderr.strip()}")
