"""Which Compose file hands a service its GPUs: compose.gpu.yaml, or one made from it where that cannot say it.

Compose fills variables into single words, so a file that people use by hand names one device. Several are a list, and
an engine that knows NVIDIA's GPUs by CDI alone has other names for them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from vlalab.description import compose, gpus
from vlalab.engine import docker
from vlalab.host import state
from vlalab.host.console import say


def files(service: str, variables: Mapping[str, str]) -> list[Path]:
    """Return the file for a service that gets a GPU: told to, or there is one and nobody said none; else nothing.

    known: the variables that Compose would see. Raises LabError where the choice names no device, and where nobody
    chose and nvidia-smi fails.
    """
    choice = gpus.chosen(service, variables)
    if service not in compose.gpu_services() or choice == "none":
        return []
    if not choice:
        gpus.check(service)
        if not gpus.count():
            return []
        if not docker.has_gpu_runtime():
            say(f"'{service}' runs without a GPU: {docker.gpu_problem()}")
            return []
    names = choice.split(",") if choice else ["0"]
    by_cdi = not docker.has_nvidia_runtime() and bool(docker.cdi_devices(docker.info()))
    return [_made(service, names, by_cdi) if by_cdi or len(names) > 1 else compose.GPU_FILE]


def _made(service: str, names: list[str], by_cdi: bool) -> Path:
    """Return compose.gpu.yaml's part for a service with these devices, as a file in the caller's own folder."""
    request = dict(compose.device_request(service))
    request["device_ids"] = [f"nvidia.com/gpu={name}" for name in names] if by_cdi else names
    request["driver"] = "cdi" if by_cdi else request["driver"]
    body = {"deploy": {"resources": {"reservations": {"devices": [request]}}}}
    text = json.dumps({"services": {service: body}}, indent=1) + "\n"  # which is YAML too
    path = state.directory("gpus") / f"{service}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.yaml"
    if state.read(path) != text:
        state.write(path, text)
    return path
