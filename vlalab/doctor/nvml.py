"""The GPUs as NVIDIA's library (NVML) reports them: `python -m vlalab.doctor.nvml` prints one JSON object.

{"error": "LibRmVersionMismatch"} (NVML's name of an error), or {"driver": "570.86.15", "devices": […]}.
Memory is in bytes. A value that a GPU does not know is null.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

PREFIX = "NVMLError_"


def query() -> dict[str, Any]:
    """Return the driver and its GPUs, or NVML's error."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"error": type(error).__name__.removeprefix(PREFIX)}
    return {
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "devices": [_device(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())],
    }


def _device(pynvml: Any, index: int) -> dict[str, Any]:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:  # the GPU has fallen off the bus
        return {"index": index, "error": type(error).__name__.removeprefix(PREFIX)}

    def value(name: str, convert: Callable[[Any], Any] = lambda value: value) -> Any:
        try:
            return convert(getattr(pynvml, f"nvmlDeviceGet{name}")(handle))
        except pynvml.NVMLError:
            return None

    memory = value("MemoryInfo")
    compute, graphics = value("ComputeRunningProcesses"), value("GraphicsRunningProcesses")
    return {
        "index": index,
        "name": value("Name"),
        "uuid": value("UUID"),
        "capability": value("CudaComputeCapability", list),
        "memory": memory and memory.total,
        "used": memory and memory.used,
        "mig": value("MigMode", lambda modes: bool(modes[0])),
        "processes": None if compute is None else sorted({process.pid for process in (*compute, *(graphics or ()))}),
    }


if __name__ == "__main__":
    print(json.dumps(query()))
