"""The GPUs as NVIDIA's own library (NVML) tells them: `python -m vlalab.doctor.nvml` prints one JSON object.

{"error": "LibRmVersionMismatch"} (NVML's name of an error), or {"driver": "570.86.15", "cuda": [12, 8],
"devices": […]}.
Memory is in bytes. A value that a GPU does not know is null.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def ask() -> dict[str, Any]:
    """Returns what the library says."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"error": type(error).__name__.removeprefix("NVMLError_")}
    cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    count = pynvml.nvmlDeviceGetCount()
    return {
        "driver": _text(pynvml.nvmlSystemGetDriverVersion()),
        "cuda": [cuda // 1000, cuda % 1000 // 10],
        "devices": [_device(pynvml, index) for index in range(count)],
    }


def _device(pynvml: Any, index: int) -> dict[str, Any]:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:  # one that fell off the bus
        return {"index": index, "error": type(error).__name__.removeprefix("NVMLError_")}

    def known(call: Callable[[Any], Any], read: Callable[[Any], Any] = lambda found: found) -> Any:
        try:
            return read(call(handle))
        except pynvml.NVMLError:
            return None

    memory = known(pynvml.nvmlDeviceGetMemoryInfo)
    return {
        "index": index,
        "name": known(pynvml.nvmlDeviceGetName, _text),
        "uuid": known(pynvml.nvmlDeviceGetUUID, _text),
        "capability": known(pynvml.nvmlDeviceGetCudaComputeCapability, list),
        "memory": memory and memory.total,
        "used": memory and memory.used,
        "persistence": known(pynvml.nvmlDeviceGetPersistenceMode, bool),
        "mig": known(pynvml.nvmlDeviceGetMigMode, lambda modes: bool(modes[0])),
        "processes": known(pynvml.nvmlDeviceGetComputeRunningProcesses, _pids(pynvml, handle)),
    }


def _pids(pynvml: Any, handle: Any) -> Callable[[Any], list[int]]:
    """Returns what reads the programs on a GPU: those that compute, and those that draw."""

    def read(computing: Any) -> list[int]:
        try:
            drawing = pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
        except pynvml.NVMLError:
            drawing = []
        return sorted({one.pid for one in (*computing, *drawing)})

    return read


def _text(found: str | bytes) -> str:
    return found.decode(errors="replace") if isinstance(found, bytes) else found


if __name__ == "__main__":
    print(json.dumps(ask()))
