"""Choose what renders the frames, before MuJoCo is imported: an EGL device (GPU or llvmpipe) or OSMesa.

MuJoCo binds to one EGL device per process when it is imported, so the device is found first, with ctypes and without
initialising any driver: a CPU run must not open the GPU that a policy on the same machine is using.
"""

import ctypes
import ctypes.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

RENDER_MODES = ("auto", "cpu", "gpu", "none")

APT_PACKAGES = "apt-get install -y libegl1 libegl-mesa0 libgl1-mesa-dri libgl1 libgles2 libglvnd0 libglib2.0-0"

_GPU_HINT = (
    "in a container set NVIDIA_DRIVER_CAPABILITIES=all (it must hold 'graphics') and check that "
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json exists"
)

# EGL's numbers (EGL 1.5 and the registry of extensions).
_EGL_EXTENSIONS = 0x3055
_EGL_CUDA_DEVICE_NV = 0x323A
_EGL_PLATFORM_DEVICE_EXT, _EGL_OPENGL_API = 0x313F, 0x30A2
# Surface: pbuffer. Renderable: OpenGL. Red, green, blue and depth, as MuJoCo asks for. None.
_EGL_CONFIG = (0x3033, 0x1, 0x3040, 0x8, 0x3024, 8, 0x3023, 8, 0x3022, 8, 0x3025, 24, 0x3038)
TRY_S = 60.0  # a driver that needs longer for a context hangs


@dataclass(frozen=True)
class EglDevice:
    """One EGL device. `cuda` is its number in nvidia-smi, None where it is no NVIDIA device."""

    index: int
    software: bool
    cuda: int | None


@dataclass(frozen=True)
class GlChoice:
    """The selected renderer. `backend` is MuJoCo's name for it; `device` the EGL device's index, None without EGL."""

    backend: str  # "egl" | "osmesa" | "disable"
    device: int | None
    software: bool
    note: str = ""  # why it is not a GPU, if one was expected


def _egl_function(egl, name: str, restype, *argtypes):
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    egl.eglGetProcAddress.argtypes = [ctypes.c_char_p]
    address = egl.eglGetProcAddress(name.encode())
    return ctypes.CFUNCTYPE(restype, *argtypes)(address) if address else None


def egl_devices(max_devices: int = 32) -> list[EglDevice] | None:
    """Return the EGL devices of this machine in EGL's order, or None when libEGL cannot be loaded.

    NVIDIA's EGL very likely counts `cuda` within CUDA_VISIBLE_DEVICES (RLinf pull 1458; not measured here). A process
    that has the variable asks in a child without it: then the numbers are nvidia-smi's in either case. Raises
    RuntimeError with the child's error where it fails.
    """
    if not os.environ.get("CUDA_VISIBLE_DEVICES"):
        return _query_devices(max_devices)
    variables = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    child = subprocess.run([sys.executable, "-I", "-S", __file__], env=variables, capture_output=True, text=True)
    if child.returncode != 0:
        raise RuntimeError(f"EGL's devices cannot be listed: {_error_of(child)}")
    listed = json.loads(child.stdout.splitlines()[-1])
    return listed if listed is None else [EglDevice(**device) for device in listed]


def _query_devices(max_devices: int = 32) -> list[EglDevice] | None:
    try:
        egl = ctypes.CDLL("libEGL.so.1")
    except OSError:
        return None
    ints, pointers = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_void_p)
    query = _egl_function(egl, "eglQueryDevicesEXT", ctypes.c_uint, ctypes.c_int, pointers, ints)
    text = _egl_function(egl, "eglQueryDeviceStringEXT", ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int)
    size = ctypes.POINTER(ctypes.c_ssize_t)
    attrib = _egl_function(egl, "eglQueryDeviceAttribEXT", ctypes.c_uint, ctypes.c_void_p, ctypes.c_int, size)
    handles, count = (ctypes.c_void_p * max_devices)(), ctypes.c_int(0)
    if query is None or text is None or not query(max_devices, handles, ctypes.byref(count)):
        return []
    devices = []
    for index in range(count.value):
        extensions, cuda = (text(handles[index], _EGL_EXTENSIONS) or b"").decode(), ctypes.c_ssize_t(-1)
        has_cuda = "EGL_NV_device_cuda" in extensions and attrib is not None
        has_cuda = has_cuda and attrib(handles[index], _EGL_CUDA_DEVICE_NV, ctypes.byref(cuda))
        is_software = "EGL_MESA_device_software" in extensions
        devices.append(EglDevice(index, is_software, cuda.value if has_cuda else None))
    return devices


def _error_of(child: "subprocess.CompletedProcess[str]") -> str:
    """Return the last line that a child wrote, else how it ended."""
    return (child.stderr.strip().splitlines() or [f"its process ended with code {child.returncode}"])[-1]


def context_error(index: int) -> str | None:
    """Return why an EGL device cannot render, None where it can: a MIG slice may be listed and have no graphics.

    Tried in a child: MuJoCo's own context comes later, and drivers may crash.
    """
    command = [sys.executable, "-I", "-S", __file__, str(index)]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=TRY_S)
    except subprocess.TimeoutExpired:
        return f"its driver has not answered in {TRY_S:.0f} s"
    return None if child.returncode == 0 else _error_of(child)


def _make_context(index: int) -> None:
    """Make an OpenGL context on an EGL device, or exit with what failed."""
    egl, ints = ctypes.CDLL("libEGL.so.1"), ctypes.POINTER(ctypes.c_int)
    pointer, pointers, boolean = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint
    query = _egl_function(egl, "eglQueryDevicesEXT", boolean, ctypes.c_int, pointers, ints)
    get_display = _egl_function(egl, "eglGetPlatformDisplayEXT", pointer, ctypes.c_int, pointer, ints)
    handles, count = (pointer * (index + 1))(), ctypes.c_int(0)
    query(index + 1, handles, ctypes.byref(count))
    egl.eglGetError.restype = ctypes.c_int

    def require(step: str, result: object) -> None:
        if not result:
            sys.exit(f"{step} fails with EGL error {egl.eglGetError():#06x}")

    display = pointer(get_display(_EGL_PLATFORM_DEVICE_EXT, handles[index], None))
    require("eglGetPlatformDisplayEXT", display)
    require("eglInitialize", egl.eglInitialize(display, None, None))
    attributes, config = (ctypes.c_int * len(_EGL_CONFIG))(*_EGL_CONFIG), pointer()
    require("eglChooseConfig", egl.eglChooseConfig(display, attributes, ctypes.byref(config), 1, ctypes.byref(count)))
    require("eglChooseConfig", count.value)
    require("eglBindAPI", egl.eglBindAPI(_EGL_OPENGL_API))
    egl.eglCreateContext.restype = pointer
    require("eglCreateContext", egl.eglCreateContext(display, config, None, None))
    os._exit(0)  # some drivers crash while they are unloaded


def has_nvidia_gpu() -> bool:
    """Return whether the kernel exposes an NVIDIA GPU to this process."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def choose(render: str, environ=os.environ) -> GlChoice:
    """Return the renderer for mode `render`: "cpu", "gpu", "auto" (a GPU if EGL lists one) or "none".

    Raises ValueError for another mode or a bad MUJOCO_EGL_DEVICE_ID, and RuntimeError, naming the packages or settings
    that help, if this machine cannot render in that mode.
    """
    if render not in RENDER_MODES:
        raise ValueError(f"render mode {render!r} is unknown; expected one of {', '.join(RENDER_MODES)}")
    if render == "none":
        return GlChoice("disable", None, software=True)
    note = ""
    try:
        devices = egl_devices()
    except RuntimeError as error:
        if render == "gpu":
            raise
        devices, note = None, f"frames are rendered on the CPU: {error}"
    configured, value = None, environ.get("MUJOCO_EGL_DEVICE_ID", "")
    if value:
        if not value.isdigit() or int(value) >= len(devices or []):
            count = len(devices or [])
            expected = f"expected 0 to {count - 1} ({count} found), or unset it"
            raise ValueError(f"MUJOCO_EGL_DEVICE_ID={value!r} is not an EGL device; {expected}")
        configured = devices[int(value)]
    if render != "cpu":
        gpu = configured if configured is not None else next(iter(visible_gpus(devices or [], environ)), None)
        if gpu is not None and not gpu.software:
            reason = context_error(gpu.index)
            if reason is None:
                return GlChoice("egl", gpu.index, software=False)
            reason = f"EGL lists GPU {gpu.cuda}, but it cannot render ({reason}), as a MIG slice without graphics"
            if render == "gpu":
                raise RuntimeError(f"{reason}; choose render mode 'cpu'")
            note = f"{reason}: frames are rendered on the CPU"
        elif render == "gpu" and devices is None:
            raise RuntimeError(f"render mode 'gpu' needs EGL, and libEGL.so.1 is missing. Install it: {APT_PACKAGES}")
        elif render == "gpu":
            found = f"render mode 'gpu' found no GPU among {len(devices)} EGL devices"
            slower = "or choose render mode 'cpu' (slower; few pixels differ by more than 8 levels)"
            raise RuntimeError(f"{found}; {_GPU_HINT}, {slower}")
    if note:
        return _software(devices, note)
    note = "this machine has a GPU, but EGL lists none: frames are rendered on the CPU; " + _GPU_HINT
    hoped_for = render == "auto" and environ.get("CUDA_VISIBLE_DEVICES") != "" and has_nvidia_gpu()
    return _software(devices, note if hoped_for else "")


def bind(choice: GlChoice) -> None:
    """Set the variables that MuJoCo and PyOpenGL read on import."""
    os.environ["MUJOCO_GL"] = choice.backend
    os.environ.pop("MUJOCO_EGL_DEVICE_ID", None)
    os.environ.pop("PYOPENGL_PLATFORM", None)
    if choice.backend != "disable":
        os.environ["PYOPENGL_PLATFORM"] = choice.backend
    if choice.device is not None:
        os.environ["MUJOCO_EGL_DEVICE_ID"] = str(choice.device)


def _software(devices: list[EglDevice] | None, note: str) -> GlChoice:
    soft = next((device for device in devices or [] if device.software), None)
    if soft is not None:
        return GlChoice("egl", soft.index, software=True, note=note)
    if ctypes.util.find_library("OSMesa"):
        return GlChoice("osmesa", None, software=True, note=note)
    reason = "libEGL.so.1 is missing" if devices is None else f"EGL lists {len(devices)} devices, none in software"
    raise RuntimeError(
        f"frames cannot be rendered: {reason}, and libOSMesa is missing too. Install them: {APT_PACKAGES}"
    )


def spread(number: int, environ=os.environ) -> dict[str, str]:
    """Return the variables that assign worker `number` a GPU, round-robin; empty with fewer than two GPUs."""
    gpus = visible_gpus(egl_devices() or [], environ)
    if len(gpus) < 2 or environ.get("MUJOCO_EGL_DEVICE_ID"):
        return {}
    return {"MUJOCO_EGL_DEVICE_ID": str(gpus[number % len(gpus)].index)}


def visible_gpus(devices: list[EglDevice], environ=os.environ) -> list[EglDevice]:
    """Return the GPUs that may render: those of CUDA_VISIBLE_DEVICES in its order, which is not EGL's; all without it.

    Empty means none, as it does to CUDA. UUIDs of GPUs and of MIG slices are looked up in `nvidia-smi -L`; one that it
    does not list is ignored, unless there is one GPU only.
    """
    gpus = [device for device in devices if not device.software]
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpus
    numbers = [word.strip() for word in visible.split(",")]
    if any(name.startswith(("GPU-", "MIG-")) for name in numbers):
        by_uuid, number = {}, ""
        if shutil.which("nvidia-smi"):  # a MIG slice's line follows its GPU's
            listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=TRY_S).stdout
            for line in listed.splitlines():
                if gpu := re.match(r"GPU (\d+):", line):
                    number = gpu[1]
                if uuid := re.search(r"UUID: ([\w/-]+)", line):
                    by_uuid[uuid[1]] = number
        if not by_uuid and len(gpus) == 1:
            return gpus
        # CUDA accepts a prefix of a UUID too
        numbers = [next((n for uuid, n in by_uuid.items() if uuid.startswith(name)), name) for name in numbers]
    return [device for number in numbers for device in gpus if number.isdigit() and device.cuda == int(number)]


if __name__ == "__main__":
    if sys.argv[1:]:
        _make_context(int(sys.argv[1]))
    devices = _query_devices()
    print(json.dumps(devices and [asdict(device) for device in devices]))
