"""The GPUs of this machine, as nvidia-smi tells them, and the ones that a service is to see.

A service's variable VLALAB_<SERVICE>_GPU, or a task's --gpu, says which: none, all, or devices as nvidia-smi has them
(numbers, UUIDs, MIG devices). Not set means what there is. Where nvidia-smi is there and fails, nobody guesses: a
driver that broke with an update would otherwise be a run on the CPU that nobody asked for.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Mapping

from vlalab.description import compose
from vlalab.host.console import LabError

ASK_S = 5.0  # a GPU that was asleep takes seconds to answer
STATUS_S = 0.8  # a table waits no longer
NO_DEVICES = "No devices were found"  # nvidia-smi's words, with a status of its own, where the driver has no GPU
DEVICE = re.compile(r"\d+|GPU-[0-9A-Fa-f-]+|MIG-[0-9A-Za-z/-]+")
# What a driver that does not answer says of itself, as its library names it → a part of nvidia-smi's words; why, and
# what to do.
DRIVER_FAILURES = {
    "LibRmVersionMismatch": (
        "version mismatch",
        "the kernel has {driver} loaded and the library is of another version: it was updated since the machine "
        "started; sudo reboot",
    ),
    "DriverNotLoaded": (
        "communicate with the NVIDIA driver",
        "the driver is installed and the kernel has not loaded it; after a new kernel its module has to be built "
        "again, Secure Boot may refuse it: sudo modprobe nvidia",
    ),
    "NoPermission": (
        "Insufficient Permissions",
        "the GPU is closed to you: no right to /dev/nvidiactl; sudo chmod 666 /dev/nvidia*",
    ),
}


def _query(query: str, timeout_s: float) -> list[list[str]]:
    """Return the rows of `nvidia-smi --query-…`, each a list of stripped cells; none where it is missing.

    Raises OSError, with nvidia-smi's words, where it is installed and fails.
    """
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-{query}", "--format=csv,noheader,nounits"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise OSError(f"it did not answer within {timeout_s:g} s") from None
    output = (process.stdout + process.stderr).strip()
    if process.returncode != 0 and NO_DEVICES not in output:
        raise OSError(output.splitlines()[0] if output else f"it ended with status {process.returncode}")
    lines = process.stdout.splitlines() if process.returncode == 0 else []
    return [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]


@functools.cache
def _devices() -> tuple[dict[str, str], str | None]:
    """Return {number: UUID}, and what nvidia-smi said if it failed."""
    try:
        rows = _query("gpu=index,uuid", ASK_S)
    except OSError as error:
        return {}, str(error)
    return {row[0]: row[-1] for row in rows if row[0].isdigit()}, None


def count() -> int:
    """Return how many GPUs there are."""
    return len(_devices()[0])


def problem() -> str | None:
    """Return what nvidia-smi said where it is there and fails, None where it answers or is not there."""
    return _devices()[1]


def memory_by_process() -> dict[int, dict[str, int]]:
    """Return {pid: {GPU's index: MiB}} for every process that computes on a GPU; nothing where nvidia-smi fails."""
    used: dict[int, dict[str, int]] = defaultdict(dict)
    try:
        index = {row[1]: row[0] for row in _query("gpu=index,uuid", STATUS_S) if len(row) == 2}
        rows = _query("compute-apps=pid,gpu_uuid,used_memory", STATUS_S)
    except OSError:
        return {}
    for row in rows:
        if len(row) == 3 and row[0].isdigit() and row[2].isdigit():
            used[int(row[0])][index.get(row[1], "?")] = int(row[2])
    return dict(used)


# --- which ones a service sees ------------------------------------------------------------------------------


def variable(service: str) -> str:
    """Return the variable that says which GPUs a service sees: "ws_mdl" → VLALAB_WS_MDL_GPU."""
    return f"VLALAB_{service.upper().replace('-', '_')}_GPU"


def devices(choice: str, label: str) -> list[str]:
    """Return the devices of a choice like "0,1", as nvidia-smi names them. Raises LabError for what names none."""
    names = [part.strip() for part in choice.split(",")]
    if not all(DEVICE.fullmatch(part) for part in names):
        raise LabError(
            f"{label} {choice} is no device; expected auto, none, all, or numbers or UUIDs as `nvidia-smi -L` shows: "
            "0 or 0,1 or GPU-… or MIG-…"
        )
    if len(set(names)) < len(names):
        raise LabError(f"{label} {choice} names a device twice; name each once")
    return names


def chosen(service: str, variables: Mapping[str, str]) -> str:
    """Return what `known` says about a service: "" (what there is), "none", "all" or devices. Raises LabError."""
    choice = variables.get(variable(service), "")
    if service not in compose.gpu_services() or choice in ("", "auto"):
        return ""
    return choice if choice in ("all", "none") else ",".join(devices(choice, variable(service)))


def why_silent(message: str, driver: str = "another driver") -> str:
    """Return why a driver does not answer and what to do, by nvidia-smi's words or by the name of NVML's error."""
    explanations = (
        explanation.format(driver=driver)
        for name, (pattern, explanation) in DRIVER_FAILURES.items()
        if message == name or pattern in message
    )
    return next(explanations, f"the GPU's driver does not answer ({message}); restart the machine: sudo reboot")


def check(service: str) -> None:
    """Raise LabError where a service would take the GPU there is, and nvidia-smi fails."""
    if service in compose.gpu_services() and (message := problem()):
        raise LabError(f"{why_silent(message)}, or run on the CPU with --gpu none ({variable(service)}=none)")


def first(number: int) -> str | None:
    """Return the choice of that many devices, the first ones; None where there are not so many."""
    return ",".join(list(_devices()[0])[:number]) if count() >= number else None


def visible(service: str, variables: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return which GPUs a local process is to see, "" for all, and the variables that let it see no other.

    CUDA counts devices as nvidia-smi does only when it is told to. What the caller's own CUDA_VISIBLE_DEVICES says
    stays, unless the lab's variable says something. Raises LabError where nobody said anything and nvidia-smi fails.
    """
    choice = chosen(service, variables)
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if choice == "none":
        return choice, {"CUDA_VISIBLE_DEVICES": ""}
    if choice not in ("", "all"):
        # By number where nvidia-smi knows it: EGL's devices can be named by number only.
        numbers = {uuid: number for number, uuid in _devices()[0].items()}
        return choice, {**order, "CUDA_VISIBLE_DEVICES": ",".join(numbers.get(d, d) for d in choice.split(","))}
    if service not in compose.gpu_services() or "CUDA_VISIBLE_DEVICES" in os.environ:
        return "", {}
    if not choice:
        check(service)
    return "", order
