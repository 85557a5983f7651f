"""The Compose file that gives a service its GPUs: compose.gpu.yaml, or a file generated from it.

Compose substitutes variables into single values, so compose.gpu.yaml names one device. Several devices need a list, and
an engine with CDI only has other names for them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from vlalab.description import compose, gpus
from vlalab.engine import docker
from vlalab.host import state
from vlalab.host.console import log_info


def files(service: str, variables: Mapping[str, str]) -> list[Path]:
    """Return the file for a service that gets a GPU: by its variable, or by default on a machine with GPUs; else none.

    variables: those of Compose. Raises LabError if the choice names no device, or if there is no choice and nvidia-smi
    fails.
    """
    choice = gpus.selection(service, variables)
    if service not in compose.gpu_services() or choice == "none":
        return []
    if not choice:
        gpus.check(service)
        if not gpus.count():
            return []
        if not docker.has_gpu_runtime():
            log_info(f"'{service}' runs without a GPU: {docker.gpu_problem()}")
            return []
    names = choice.split(",") if choice else ["0"]
    by_cdi = not docker.has_nvidia_runtime() and bool(docker.cdi_devices(docker.info()))
    return [_write_reservation(service, names, by_cdi) if by_cdi or len(names) > 1 else compose.GPU_FILE]


def _write_reservation(service: str, names: list[str], by_cdi: bool) -> Path:
    """Write a service's part of compose.gpu.yaml with these devices to the state directory; return its path."""
    request = dict(compose.device_request(service))
    request["device_ids"] = [f"nvidia.com/gpu={name}" for name in names] if by_cdi else names
    request["driver"] = "cdi" if by_cdi else request["driver"]
    body = {"deploy": {"resources": {"reservations": {"devices": [request]}}}}
    text = json.dumps({"services": {service: body}}, indent=1) + "\n"  # JSON is valid YAML
    path = state.directory("gpus") / f"{service}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.yaml"
    if state.read(path) != text:
        state.write(path, text)
    return path
