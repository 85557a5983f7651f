"""Rendering without a display: EGL, its driver files, and which device renders."""

from __future__ import annotations

import os
import re

from vlalab.description import manifests
from vlalab.doctor.check import FAIL, GL, WARN, Context, Finding, check, fail, ok, skip, warn
from vlalab.doctor.checks.nvidia import GPU, devices
from vlalab.environments import venvs
from vlalab.host import gl, paths

VENDORS = "/usr/share/glvnd/egl_vendor.d"
PACKAGES = f"sudo apt-get install -y {' '.join(gl.PACKAGES)}"


@check("egl", "EGL", FAIL, PACKAGES, requires=(GL,))
def egl(context: Context) -> Finding:
    """Simulators render through EGL, on a GPU or on the CPU."""
    if lack := gl.missing():
        if os.geteuid() == 0 and context.machine.which("apt-get"):
            return warn(lack, hint="the first evaluation installs it")
        return fail(lack)
    count = gl.egl_devices()
    return ok(f"{count} device{'s' * (count != 1)} to render on")


@check("egl-drivers", "EGL's drivers", WARN, f"sudo cp images/ENV/10_nvidia.json {VENDORS}/", requires=(GL, GPU))
def egl_drivers(context: Context) -> Finding:
    """Without NVIDIA's file a GPU renders nothing."""
    files = context.machine.names(VENDORS) + context.machine.names("/etc/glvnd/egl_vendor.d")
    if any("nvidia" in name for name in files):
        return ok(", ".join(files))
    fix = f"sudo cp {context.root}/images/{_simulator()}/10_nvidia.json {VENDORS}/"
    return warn("EGL does not know NVIDIA's driver: scenes are rendered on the CPU", fix)


def _simulator() -> str:
    return next(name for name, environment in manifests.environments().items() if environment.needs_gl)


@check("renderer", "renderer", FAIL, PACKAGES, requires=(GL,), limit_s=8.0)
def renderer(context: Context) -> Finding:
    """Rendering on the CPU next to an idle GPU costs hours."""
    env, module = venvs.get(_simulator(), context.root), manifests.environment(_simulator()).renderer
    if not module or not env.is_ready():
        return skip("its environment is not installed yet")
    command = ("env", f"PYTHONPATH={paths.python_path()}", str(env.python), "-m", module, "auto")
    output = context.machine.run(*command, limit_s=7.0)
    return judge_renderer(output.out if output.code == 0 else "", bool(devices(context)), output.err.strip())


def judge_renderer(text: str, has_gpu: bool, messages: str = "") -> Finding:
    """Return the finding for a renderer's name, the last line of `text`. messages: why it uses the CPU."""
    name = (text.strip().splitlines() or [""])[-1]
    if not name:
        return fail(f"nothing can be rendered: {(messages.splitlines() or ['the driver printed no message'])[-1]}")
    label = re.sub(r"\s*\(.*?\)|, .*$", "", name)
    if has_gpu and re.search(r"llvmpipe|softpipe|swrast", name):
        reason = (messages.splitlines() or ["an evaluation takes hours"])[0]
        message = f"{label} renders on the CPU although there is a GPU: {reason}"
        return warn(message, "./lab doctor", "look at the files that name EGL's drivers")
    return ok(f"{label} renders" + ("" if has_gpu else ", on the CPU"), details={"renderer": name})


@check("one-gpu", "shared GPU", WARN, "./lab eval SUITE --render cpu", requires=(GL, GPU))
def shared_gpu(context: Context) -> Finding:
    """Some drivers abort when one GPU renders and computes."""
    if len(devices(context)) > 1:
        return skip("more than one GPU")
    selected = context.selected().values() if context.environments else ()
    if any(environment.needs_gl for environment in selected) and any(environment.torch for environment in selected):
        reason = "rendering and models share the only GPU, and some drivers abort one of the two"
        return warn(reason, hint="the aborted process is restarted; if that happens often")
    return ok("rendering and models share the only GPU; --render cpu separates them")
