"""NVIDIA: GPUs, the driver, the requirements of each environment's torch, and GPUs for containers.

The state of GPUs comes from NVIDIA's library (doctor/machine.py), or from files if it does not answer.
"""

from __future__ import annotations

import re
from typing import Any

from vlalab.description import gpus, variants
from vlalab.doctor.check import (
    FAIL,
    TORCH,
    WARN,
    Condition,
    Context,
    Finding,
    check,
    fail,
    from_refusal,
    ok,
    skip,
    warn,
)  # fmt: skip
from vlalab.doctor.checks.docker import ENGINE, RESTART, engine_info
from vlalab.engine import docker, images
from vlalab.host import shared_code
from vlalab.host.memory import format_size

# The oldest driver for a CUDA release of that major number (docs.nvidia.com/deploy/cuda-compatibility, for Linux).
OLDEST = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
VENDOR = "0x10de"
LEAKED_BYTES = 10**9  # bytes in use by no process; a driver keeps some hundred MB for itself
INSTALL = "sudo ubuntu-drivers install"
BEFORE = ("up", "train", "finetune", "learn")


def devices(context: Context) -> list[dict[str, Any]]:
    """Return the working GPUs, as NVIDIA's library reports them."""
    return [gpu for gpu in context.machine.gpus().get("devices", ()) if "error" not in gpu]


GPU: Condition = (devices, "no NVIDIA GPU")


@check("nvidia-driver", "driver", FAIL, "sudo reboot", requires=(TORCH,), before=BEFORE)
def driver(context: Context) -> Finding:
    """Models run on a GPU only while its driver answers."""
    report, bus = context.machine.gpus(), "/sys/bus/pci/devices"
    cards = [
        name for name in context.machine.names(bus)
        if (context.machine.read(f"{bus}/{name}/vendor") or "").strip() == VENDOR
        and (context.machine.read(f"{bus}/{name}/class") or "").startswith("0x03")  # display controllers
    ]  # fmt: skip
    if "driver" in report:
        lost = [f"driver {report['driver']} lost GPU {gpu['index']}" for gpu in report["devices"] if "error" in gpu]
        if not report["devices"] and not cards:
            return skip(GPU[1])
        if lost or not report["devices"]:
            reason = lost[0] if lost else "the driver finds no working GPU"
            return fail(reason, details={"driver": report["driver"]})
        names = ", ".join(str(gpu["name"]) for gpu in report["devices"])
        return ok(f"{report['driver']}: {names}", details={"driver": report["driver"], "devices": report["devices"]})
    version = context.machine.read("/proc/driver/nvidia/version") or ""
    loaded = re.search(r"Kernel Module(?: for \w+)?\s+(\d+\.\d+(?:\.\d+)?)", version)
    if report["error"] == "LibRmVersionMismatch":
        driver_label = f"driver {loaded[1]}" if loaded else "another driver"
        return from_refusal(FAIL, gpus.explain_driver_failure(report["error"], driver_label))
    if "dxg" in context.machine.names("/dev"):
        reason = "WSL has a GPU, and Windows's driver does not answer"
        return fail(reason, "wsl.exe --shutdown", "update NVIDIA's driver in Windows, then")
    if not cards and not loaded:
        return skip(GPU[1])
    if re.search(r"(?m)^nouveau ", context.machine.read("/proc/modules") or ""):
        return warn("the GPU uses the nouveau driver, which has no CUDA: models use the CPU", INSTALL, "and restart")
    if report["error"] == "LibraryNotFound" and not loaded:
        return warn(f"GPU {cards[0]} has no driver: models use the CPU", INSTALL, "and restart")
    return from_refusal(FAIL, gpus.explain_driver_failure(report["error"]))


@check("nvidia-version", "driver and GPU for torch", FAIL, INSTALL, requires=(TORCH, GPU), before=(*BEFORE, "build"))
def torch_support(context: Context) -> Finding:
    """CUDA rejects older drivers; torch has no machine code for newer GPUs."""
    version, runs_on = context.machine.gpus()["driver"], shared_code.load("vla_modelkit.builds:runs_on")
    builds = {name: environment.torch for name, environment in context.selected().items() if environment.torch}
    too_old = {}
    for name, torch in builds.items():
        oldest = OLDEST[int(torch.cuda.split(".")[0])]
        if tuple(map(int, re.findall(r"\d+", version))) < oldest:
            too_old[name] = f"{name} ({torch.cuda}: {'.'.join(map(str, oldest))})"
    reason = f"driver {version} is too old for the CUDA of {', '.join(too_old.values())}"
    # Each environment has its own CUDA: if none is named, those that this machine serves are enough.
    if too_old and (context.environments or too_old.keys() == builds.keys()):
        return fail(reason, hint="then restart")
    served = {name: torch for name, torch in builds.items() if name not in too_old}
    for gpu in devices(context):
        capability = tuple(gpu["capability"] or ())
        unsupported = [name for name, torch in served.items() if not runs_on(torch.architectures, capability)]
        if capability and unsupported:
            label = f"GPU {gpu['index']} ({gpu['name']}, sm_{''.join(map(str, capability))})"
            report = fail if context.environments or len(unsupported) == len(served) else warn
            unusable = f"{label}: the torch of {', '.join(unsupported)} has no code for it"
            if too_old:
                return report(f"{unusable}, and {reason}", hint="then restart")
            if newer := [name for name in unsupported if variants.of(name)]:
                fix = f"./lab up {newer[0]} --variant {variants.of(newer[0])[0]}"
                return report(unusable, fix, "use the variant with a newer torch")
            return report(unusable, "./lab up SERVICE --gpu none", "use another GPU, or the CPU")
    return ok(reason if too_old else f"{version} and every GPU serve the environments' torch")


@check("nvidia-memory", "GPU's memory", WARN, "sudo fuser -v /dev/nvidia*", requires=(TORCH, GPU))
def gpu_memory(context: Context) -> Finding:
    """Memory of a dead process is not available to other processes."""
    cards = [gpu for gpu in devices(context) if gpu["memory"]]
    for gpu in cards:
        if gpu["used"] > LEAKED_BYTES and gpu["processes"] == [] and not gpu["mig"]:
            reason = f"GPU {gpu['index']} has {format_size(gpu['used'])} in use by no process"
            return warn(reason, hint="find the process that holds it")
    free = [
        f"{gpu['index']}: {format_size(gpu['memory'] - gpu['used'])} of {format_size(gpu['memory'])} free"
        for gpu in cards
    ]
    return ok(", ".join(free))


@check("nvidia-toolkit", "GPUs for containers", WARN, "sudo apt-get install -y nvidia-container-toolkit",
       requires=(TORCH, GPU, ENGINE))  # fmt: skip
def toolkit(context: Context) -> Finding:
    """Containers get a GPU from NVIDIA's toolkit, and keep it after a reload of systemd only with device links."""
    info = engine_info(context)
    is_unfit = "Docker Desktop" in info.get("OperatingSystem", "") or "/snap/" in info.get("DockerRootDir", "")
    if is_unfit or not docker.has_gpu_runtime(info):
        if not is_unfit and context.machine.which("nvidia-ctk") is None:
            hint = "from NVIDIA's repository (docs.nvidia.com/datacenter/cloud-native/container-toolkit)"
            return warn("nvidia-container-toolkit is not installed: containers get no GPU", hint=hint)
        return from_refusal(WARN, docker.gpu_problem(info).replace(": ", "; ", 1))
    config = context.machine.read("/etc/nvidia-container-runtime/config.toml")
    if docker.is_rootless(info) and config and not re.search(r"(?m)^\s*no-cgroups\s*=\s*true", config):
        fix = "sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place"
        return warn("the engine is rootless, and NVIDIA's runtime uses cgroups, which a user may not set", fix)
    has_links = any(name.startswith("195:") for name in context.machine.names("/dev/char"))
    if info.get("CgroupDriver") == "systemd" and not has_links:
        reason = "cgroup driver systemd: after `systemctl daemon-reload` running containers lose their GPUs"
        fix = "sudo nvidia-ctk system create-dev-char-symlinks --create-all"
        return warn(reason, fix, "at every boot (docs/doctor.md)")
    return ok("NVIDIA's runtime is registered")


@check("gpu-in-container", "GPU in a container", FAIL, RESTART, requires=(TORCH, GPU, ENGINE), named_limit_s=30.0)
def gpu_in_container(context: Context) -> Finding:
    """A service in a container would compute on the CPU."""
    if not context.environments:
        return skip("runs only for a named environment")
    built = images.existing([name for name, environment in context.selected().items() if environment.torch])
    if not built:
        return skip("its image is not built")
    name = next(iter(built))
    command = ("docker", "run", "--rm", "--gpus", "all", images.reference(name), "nvidia-smi", "-L")
    output = context.machine.run(*command, limit_s=28.0)
    if output.code != 0:
        last = (output.err.strip().splitlines() or ["no message"])[-1]
        hint = docker.advice(last) or docker.gpu_problem(engine_info(context))
        return fail(f"a container of {name} sees no GPU: {last}", "", hint)
    return ok(f"{len(output.out.splitlines())} GPUs in a container of {name}")
