"""NVIDIA: GPUs, driver, what the images' torch needs of both, and the toolkit that gives them to containers.

Conditions on GPUs come from NVIDIA's library (doctor/nvml.py); texts are read where it does not speak.
"""

from __future__ import annotations

import re

from vlalab.description import gpus
from vlalab.doctor.checks.docker import NONE, about
from vlalab.doctor.types import FAIL, WARN, Case, Check, Finding, fail, ok, refused, skip, warn
from vlalab.engine import docker
from vlalab.host import borrowed
from vlalab.host.memory import spell

# The oldest driver for a CUDA release of that major number (docs.nvidia.com/deploy/cuda-compatibility, for Linux).
OLDEST = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
VENDOR = "0x10de"
ZOMBIE = 10**9  # bytes in use that no program has; a driver keeps some hundred MB for itself
NO_GPU = "no NVIDIA GPU"
INSTALL = "sudo ubuntu-drivers install"
# Xid numbers after which a GPU is not to be trusted (docs.nvidia.com/deploy/xid-errors), and what they say.
BAD_XIDS = {
    48: "double-bit memory error",
    62: "internal halt",
    64: "memory row not remapped",
    74: "NVLink error",
    79: "fell off the bus",
    95: "uncontained memory error",
    119: "GSP timed out",
    120: "GSP error",
}
CDI_FILES = ("/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml")


def on_bus(case: Case) -> list[str]:
    """Returns the PCI addresses of NVIDIA's display controllers (class 0x03…), as the kernel lists them."""
    root = "/sys/bus/pci/devices"

    def says(one: str, field: str) -> str:
        return (case.machine.read(f"{root}/{one}/{field}") or "").strip()

    return [
        one for one in case.machine.names(root) if says(one, "vendor") == VENDOR and says(one, "class")[:4] == "0x03"
    ]


def is_wsl(case: Case) -> bool:
    """Returns whether this is WSL 2 with a GPU of Windows's."""
    return "dxg" in case.machine.names("/dev")


def devices(case: Case) -> list[dict]:
    """Returns the GPUs that answer, as NVIDIA's library tells them."""
    return [one for one in case.machine.gpus().get("devices", ()) if "error" not in one]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def loaded(case: Case) -> str:
    """Returns the version of the driver that the kernel has loaded, "" where there is none."""
    text = case.machine.read("/proc/driver/nvidia/version") or ""
    found = re.search(r"Kernel Module(?: for \w+)?\s+(\d+\.\d+(?:\.\d+)?)", text)
    return found[1] if found else ""


def driver(case: Case) -> Finding:
    """Tells no GPU, no driver, a broken one and a library of another version apart."""
    said = case.machine.gpus()
    if "driver" in said and not said["devices"] and not on_bus(case):
        return skip(NO_GPU)
    if "driver" in said:
        dead = [one for one in said["devices"] if "error" in one]
        if dead or not said["devices"]:
            return fail(
                f"driver {said['driver']} lost GPU {dead[0]['index']}"
                if dead
                else "the driver finds no GPU that works",
                fix="sudo reboot",
                facts={"driver": said["driver"]},
            )
        names = ", ".join(str(one["name"]) for one in said["devices"])
        return ok(f"{said['driver']}: {names}", facts={"driver": said["driver"], "devices": said["devices"]})
    return _silent(case, said["error"])


def _silent(case: Case, error: str) -> Finding:
    """Returns why NVIDIA's library does not speak."""
    bus, kernels = on_bus(case), loaded(case)
    if error == "LibRmVersionMismatch":
        return refused(FAIL, gpus.why_silent(error, f"driver {kernels}" if kernels else "another driver"))
    if is_wsl(case):
        return fail(
            "WSL has a GPU, and Windows's driver does not answer",
            hint="update NVIDIA's driver in Windows, then",
            fix="wsl.exe --shutdown",
        )
    if not bus and not kernels:
        return skip(NO_GPU)
    modules = case.machine.read("/proc/modules") or ""
    if re.search(r"(?m)^nouveau ", modules):
        return warn(
            "the GPU runs on nouveau, which computes nothing: models use the CPU", fix=INSTALL, hint="and restart"
        )
    if error == "LibraryNotFound" and not kernels:
        return warn(
            f"a GPU is there ({bus[0]}) and no driver for it: models use the CPU", fix=INSTALL, hint="and restart"
        )
    return refused(FAIL, gpus.why_silent(error))


def driver_version(case: Case) -> Finding:
    """Compares the driver with what each environment's CUDA needs."""
    if not devices(case):
        return skip(NO_GPU)
    have = case.machine.gpus()["driver"]
    late = []
    for name, one in case.known().items():
        need = OLDEST[int(one.torch.cuda.split(".")[0])] if one.torch else ()
        if need and _version(have) < need:
            late.append(f"{name} ({one.torch.cuda}: {'.'.join(map(str, need))})")
    if late:
        return fail(f"driver {have} is too old for the CUDA of {', '.join(late)}", fix=INSTALL, hint="then restart")
    return ok(f"{have} serves every environment's CUDA")


def architecture(case: Case) -> Finding:
    """Compares each GPU's compute capability with the list that each environment's torch was built for."""
    found, builds = devices(case), borrowed.module("vla_modelkit.builds")
    if not found:
        return skip(NO_GPU)
    for gpu in found:
        capability = tuple(gpu["capability"] or ())
        unfit = [
            name for name, one in case.known().items()
            if one.torch and capability and not builds.runs_on(one.torch.architectures, capability)
        ]  # fmt: skip
        if unfit:
            shown = f"GPU {gpu['index']} ({gpu['name']}, sm_{''.join(map(str, capability))})"
            return fail(
                f"{shown}: the torch of {', '.join(unfit)} has no code for it",
                hint="use another GPU, or the CPU",
                fix="./lab up SERVICE --gpu none",
            )
    return ok(", ".join(sorted({f"sm_{''.join(map(str, gpu['capability'] or '?'))}" for gpu in found})))


def gpu_memory(case: Case) -> Finding:
    """Tells the memory of each GPU, and memory that is in use by no program: of one that died badly."""
    found = [one for one in devices(case) if one["memory"]]
    if not found:
        return skip(NO_GPU)
    for one in found:
        if one["used"] > ZOMBIE and one["processes"] == [] and not one["mig"]:
            return warn(
                f"GPU {one['index']} has {spell(one['used'])} in use that no program has",
                hint="find who holds it",
                fix="sudo fuser -v /dev/nvidia*",
            )
    return ok(
        ", ".join(
            f"{one['index']}: {spell(one['memory'] - one['used'])} of {spell(one['memory'])} free" for one in found
        )
    )


def persistence(case: Case) -> Finding:
    """Without persistence the driver is unloaded whenever nobody uses a GPU, and takes seconds to come back."""
    off = [str(one["index"]) for one in devices(case) if one["persistence"] is False]
    if not devices(case) or is_wsl(case):
        return skip(NO_GPU)
    if off:
        return warn(
            f"off for GPU {', '.join(off)}: the first use waits for it",
            fix="sudo systemctl enable --now nvidia-persistenced",
        )
    return ok("on")


def mig(case: Case) -> Finding:
    """Tells which GPUs are divided: whoever names one of them by its number gets nothing."""
    found = devices(case)
    if not found:
        return skip(NO_GPU)
    divided = [str(one["index"]) for one in found if one["mig"]]
    if divided:
        return warn(
            f"GPU {', '.join(divided)} is divided (MIG): its parts have to be named",
            fix="nvidia-smi -L",
            hint="take their UUIDs for --gpu",
        )
    return ok("no GPU is divided")


def kernel_errors(case: Case) -> Finding:
    """Reads the kernel's log for errors that NVIDIA's driver reports (Xid)."""
    if not devices(case) and not loaded(case):
        return skip(NO_GPU)
    said = case.machine.run("dmesg")
    if said is None or said.code != 0:
        return skip("the kernel's log is closed to you", fix="sudo dmesg | grep Xid")
    found = [int(number) for number in re.findall(r"NVRM: Xid \(PCI:[0-9a-fA-F:.]+\): (\d+)", said.out)]
    bad = [number for number in found if number in BAD_XIDS]
    if bad:
        return fail(
            f"the driver reported Xid {bad[-1]}: {BAD_XIDS[bad[-1]]}",
            fix="sudo reboot",
            hint="if it comes again, the card",
        )
    if found:
        return warn(f"{len(found)} errors of the driver, the last Xid {found[-1]}", fix="sudo dmesg | grep Xid")
    return ok("none")


def toolkit(case: Case) -> Finding:
    """Looks for NVIDIA's container toolkit."""
    if not devices(case) or not about(case):
        return skip(NO_GPU if not devices(case) else NONE)
    said = case.machine.run("nvidia-ctk", "--version")
    if said is None:
        return warn(
            "nvidia-container-toolkit is not installed: containers get no GPU",
            fix="sudo apt-get install -y nvidia-container-toolkit",
            hint="from NVIDIA's repository (docs.nvidia.com/datacenter/cloud-native/container-toolkit)",
        )
    return ok(f"version {'.'.join(map(str, docker.version(said.out)))}")


def registration(case: Case) -> Finding:
    """Asks the engine whether it can hand out NVIDIA's GPUs: by their runtime, or by CDI."""
    info = about(case)
    if not devices(case) or not info:
        return skip(NO_GPU if not devices(case) else NONE)
    if "nvidia" in (info.get("Runtimes") or {}):
        return ok("NVIDIA's runtime is registered")
    if docker.cdi_devices(info):
        return ok("by CDI")
    return refused(WARN, docker.why_no_gpu(info).replace(": ", "; ", 1))


def cdi(case: Case) -> Finding:
    """Compares the driver that a CDI specification was written for with the one that is loaded."""
    texts = {path: text for path in CDI_FILES if (text := case.machine.read(path))}
    if not texts:
        return skip("no CDI specification")
    have = case.machine.gpus().get("driver") or loaded(case)
    for path, text in texts.items():
        made = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)", text)
        if made and have and made[1] != have:
            return warn(
                f"{path} was written for driver {made[1]}, loaded is {have}: containers do not start",
                fix=f"sudo nvidia-ctk cdi generate --output={path}",
            )
    return ok(f"fits driver {have}" if have else ", ".join(texts))


CHECKS = (
    Check("nvidia-driver", "driver", "Models run on a GPU only while its driver answers.", FAIL, "sudo reboot", driver,
          needs="torch", before=("up", "train", "finetune", "learn")),
    Check("nvidia-version", "driver's version", "CUDA refuses a driver that is older than it.", FAIL,
          INSTALL, driver_version, needs="torch", before=("up", "train", "finetune", "learn", "build")),
    Check("nvidia-architecture", "GPU's generation", "torch has no machine code for a GPU that is newer than it.", FAIL,
          "./lab up SERVICE --gpu none", architecture, needs="torch",
          before=("up", "train", "finetune", "learn", "build")),
    Check("nvidia-memory", "GPU's memory", "Memory that a dead program holds is missing to all others.", WARN,
          "sudo fuser -v /dev/nvidia*", gpu_memory, needs="torch"),
    Check("nvidia-persistence", "persistence", "Without it the first use of a GPU takes seconds.", WARN,
          "sudo systemctl enable --now nvidia-persistenced", persistence, needs="torch"),
    Check("nvidia-mig", "MIG", "A divided GPU has no number of its own.", WARN, "nvidia-smi -L", mig, needs="torch"),
    Check("nvidia-errors", "driver's errors", "A GPU that reported such an error may compute nonsense.", FAIL,
          "sudo dmesg | grep Xid", kernel_errors, needs="torch"),
    Check("nvidia-toolkit", "container toolkit", "Containers get a GPU through it alone.", WARN,
          "sudo apt-get install -y nvidia-container-toolkit", toolkit, needs="torch"),
    Check("nvidia-runtime", "registration", "The engine has to know the toolkit.", WARN,
          "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker", registration,
          needs="torch"),
    Check("nvidia-cdi", "CDI specification", "One of another driver names libraries that are gone.", WARN,
          "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml", cdi, needs="torch"),
)  # fmt: skip
