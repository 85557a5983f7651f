"""The GPUs of this machine, as reported by nvidia-smi, and those that a service may use.

A service's variable VLALAB_<SERVICE>_GPU, or a task's --gpu, selects them: none, all, or devices as in nvidia-smi
(numbers, UUIDs, MIG devices). The default is all. A failing nvidia-smi is an error: after a broken driver
update a run would otherwise silently use the CPU.
"""

from __future__ import annotations

import functools
import os
import re
from collections import defaultdict
from collections.abc import Mapping

from vlalab.description import compose
from vlalab.host.console import LabError
from vlalab.host.nvidia_smi import ASK_S, query

STATUS_S = 0.8  # for the status table
DEVICE = re.compile(r"\d+|GPU-[0-9A-Fa-f-]+|MIG-[0-9A-Za-z/-]+")
# NVML's error of a driver that does not answer → a part of nvidia-smi's message; cause and fix.
DRIVER_FAILURES = {
    "LibRmVersionMismatch": (
        "version mismatch",
        "the kernel has {driver} loaded and the library has another version: the driver was updated since the last "
        "boot; sudo reboot",
    ),
    "DriverNotLoaded": (
        "communicate with the NVIDIA driver",
        "the driver is installed but the kernel has not loaded it; after a kernel update its module must be rebuilt, "
        "and Secure Boot may reject it: sudo modprobe nvidia",
    ),
    "NoPermission": (
        "Insufficient Permissions",
        "no permission to use the GPU (/dev/nvidiactl); sudo chmod 666 /dev/nvidia*",
    ),
}


@functools.cache
def _devices() -> tuple[dict[str, str], str | None]:
    """Return {number: UUID}, and nvidia-smi's message if it failed."""
    try:
        rows = query("gpu=index,uuid", ASK_S)
    except OSError as error:
        return {}, str(error)
    return {row[0]: row[-1] for row in rows if row[0].isdigit()}, None


def count() -> int:
    """Return the number of GPUs."""
    return len(_devices()[0])


def problem() -> str | None:
    """Return nvidia-smi's message if it fails, None if it answers or is not installed."""
    return _devices()[1]


def memory_by_process() -> dict[int, dict[str, int]]:
    """Return {pid: {GPU index: MiB}} for every process that computes on a GPU; empty if nvidia-smi fails."""
    used: dict[int, dict[str, int]] = defaultdict(dict)
    try:
        index = {row[1]: row[0] for row in query("gpu=index,uuid", STATUS_S) if len(row) == 2}
        rows = query("compute-apps=pid,gpu_uuid,used_memory", STATUS_S)
    except OSError:
        return {}
    for row in rows:
        if len(row) == 3 and row[0].isdigit() and row[2].isdigit():
            used[int(row[0])][index.get(row[1], "?")] = int(row[2])
    return dict(used)


# --- selection ---------------------------------------------------------------------------------


def variable(service: str) -> str:
    """Return the variable that selects a service's GPUs: "ws_mdl" → VLALAB_WS_MDL_GPU."""
    return f"VLALAB_{service.upper().replace('-', '_')}_GPU"


def devices(choice: str, label: str) -> list[str]:
    """Return the devices of a selection like "0,1". Raise LabError for an invalid one."""
    names = [part.strip() for part in choice.split(",")]
    if not all(DEVICE.fullmatch(part) for part in names):
        raise LabError(
            f"invalid {label} {choice}; expected auto, none, all, or numbers or UUIDs as printed by `nvidia-smi -L`: "
            "0 or 0,1 or GPU-… or MIG-…"
        )
    if len(set(names)) < len(names):
        raise LabError(f"{label} {choice} has a duplicate device")
    return names


def selection(service: str, variables: Mapping[str, str]) -> str:
    """Return a service's selection: "" (default), "none", "all" or devices. Raise LabError if it is invalid."""
    choice = variables.get(variable(service), "")
    if service not in compose.gpu_services() or choice in ("", "auto"):
        return ""
    return choice if choice in ("all", "none") else ",".join(devices(choice, variable(service)))


def explain_driver_failure(message: str, driver: str = "another driver") -> str:
    """Return cause and fix of a driver failure, from nvidia-smi's message or the name of NVML's error."""
    explanations = (
        explanation.format(driver=driver)
        for name, (pattern, explanation) in DRIVER_FAILURES.items()
        if message == name or pattern in message
    )
    return next(explanations, f"the GPU's driver does not answer ({message}); restart the machine: sudo reboot")


def check(service: str) -> None:
    """Raise LabError if a service would use the GPU by default, and nvidia-smi fails."""
    if service in compose.gpu_services() and (message := problem()):
        raise LabError(
            f"{explain_driver_failure(message)}, or run on the CPU with --gpu none ({variable(service)}=none)"
        )


def first(number: int) -> str | None:
    """Return the selection of the first `number` devices; None if there are fewer."""
    return ",".join(list(_devices()[0])[:number]) if count() >= number else None


def visible(service: str, variables: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the GPUs that a local process may use, "" for all, and the CUDA variables that restrict it to them.

    CUDA_DEVICE_ORDER makes CUDA number devices like nvidia-smi. The caller's CUDA_VISIBLE_DEVICES stays unless the
    lab's variable is set. Raise LabError if neither is set and nvidia-smi fails.
    """
    choice = selection(service, variables)
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if choice == "none":
        return choice, {"CUDA_VISIBLE_DEVICES": ""}
    if choice not in ("", "all"):
        # Numbers rather than UUIDs if known, since EGL devices have numbers only.
        numbers = {uuid: number for number, uuid in _devices()[0].items()}
        return choice, {**order, "CUDA_VISIBLE_DEVICES": ",".join(numbers.get(d, d) for d in choice.split(","))}
    if service not in compose.gpu_services() or "CUDA_VISIBLE_DEVICES" in os.environ:
        return "", {}
    if not choice:
        check(service)
    return "", order
