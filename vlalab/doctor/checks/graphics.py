"""Drawing without a display: EGL, the files that name its drivers, and who draws."""

from __future__ import annotations

import os
import re

from vlalab.description import manifests
from vlalab.doctor.checks.nvidia import devices
from vlalab.doctor.types import FAIL, WARN, Case, Check, Finding, fail, ok, skip, warn
from vlalab.environments import venvs
from vlalab.host import gl, paths

VENDORS = "/usr/share/glvnd/egl_vendor.d"
PACKAGES = f"sudo apt-get install -y {' '.join(gl.PACKAGES)}"


def egl(case: Case) -> Finding:
    """Asks EGL for devices; Mesa's renderer on the CPU is one."""
    if lack := gl.missing():
        may = os.geteuid() == 0 and case.machine.which("apt-get")
        if may:  # eval does it itself
            return warn(lack, fix=PACKAGES.removeprefix("sudo "), hint="the first evaluation installs it")
        return fail(lack, fix=PACKAGES)
    count = gl.egl_devices()
    return ok(f"{count} device{'s' * (count != 1)} to draw on")


def vendors(case: Case) -> Finding:
    """Reads which drivers libglvnd knows: NVIDIA's needs a file of its own."""
    files = case.machine.names(VENDORS) + case.machine.names("/etc/glvnd/egl_vendor.d")
    if devices(case) and not any("nvidia" in name for name in files):
        return warn(
            "EGL does not know NVIDIA's driver: scenes are drawn on the CPU",
            fix=f"sudo cp {case.root}/images/{_drawing(case)}/10_nvidia.json {VENDORS}/",
        )
    return ok(", ".join(files)) if files else skip("no driver is named; OSMesa may draw")


def _drawing(case: Case) -> str:
    return next(name for name, one in manifests.environments().items() if one.needs_gl)


def renderer(case: Case) -> Finding:
    """Asks the driver for its name: a machine with a GPU that draws on the CPU takes hours instead of minutes."""
    name = _drawing(case)
    env, module = venvs.named(name, case.root), manifests.environment(name).renderer
    if not module or not env.is_ready():
        return skip("its environment is not made yet", fix=f"./lab env {name}")
    said = case.machine.run(
        "env", f"PYTHONPATH={paths.python_path()}", str(env.python), "-m", module, "auto", limit_s=7.0
    )
    return named(said.out if said and said.code == 0 else "", bool(devices(case)), (said.err if said else "").strip())


def named(text: str, has_gpu: bool, words: str = "") -> Finding:
    """Returns what a driver's own name means on a machine with a GPU, or without."""
    last = text.strip().splitlines()[-1:]
    if not last:
        return fail(f"nothing can be drawn: {(words.splitlines() or ['the driver says nothing'])[-1]}", fix=PACKAGES)
    short = re.sub(r"\s*\(.*?\)|, .*$", "", last[0])
    if has_gpu and re.search(r"llvmpipe|softpipe|swrast", last[0]):
        reason = (words.splitlines() or ["an evaluation takes hours"])[0]
        return warn(
            f"{short} draws on the CPU although there is a GPU: {reason}",
            fix="./lab doctor",
            hint="look at the files that name EGL's drivers",
        )
    return ok(f"{short} draws" + ("" if has_gpu else ", on the CPU"), facts={"renderer": last[0]})


def one_gpu(case: Case) -> Finding:
    """Tells where drawing and computing share the only GPU: some drivers abort one of the two."""
    count = len(devices(case))
    if count != 1:
        return skip("no GPU" if not count else f"{count} GPUs")
    asked = case.known().values() if case.environments else ()
    if any(one.needs_gl for one in asked) and any(one.torch for one in asked):
        return warn(
            "drawing and models share the only GPU, and some drivers abort one of the two",
            hint="what aborts is started again; where that happens often",
            fix="./lab eval SUITE --render cpu",
        )
    return ok("drawing and models share the only GPU; --render cpu parts them")


CHECKS = (
    Check("egl", "EGL", "Simulators draw through it, on a GPU or on the CPU.", FAIL, PACKAGES, egl, needs="gl"),
    Check("egl-drivers", "EGL's drivers", "Without NVIDIA's file a GPU draws nothing.", WARN,
          f"sudo cp images/ENV/10_nvidia.json {VENDORS}/", vendors, needs="gl"),
    Check("renderer", "renderer", "Drawing on the CPU beside an idle GPU costs hours.", FAIL, PACKAGES, renderer,
          needs="gl", limit_s=8.0),
    Check("one-gpu", "shared GPU", "Some drivers abort when one GPU draws and computes.", WARN,
          "./lab eval SUITE --render cpu", one_gpu, needs="gl"),
)  # fmt: skip
