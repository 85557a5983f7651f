"""`up POLICY --stay`: one more of a policy, which belongs to the command that started it and ends with it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence

from vlalab.commands import evaluation
from vlalab.description import checkpoints, compose, service_settings
from vlalab.engine import volumes
from vlalab.host.console import LabError, status
from vlalab.runtimes import both, local
from vlalab.runtimes.both import READY_TIMEOUT_S

LOOK_S = 0.5


def up(
    names: Sequence[str], runtime: str, given: Mapping[str, service_settings.Settings], dry_run: bool = False
) -> None:
    """Starts a policy, prints its address once it is ready, and returns when it has ended.

    Raises LabError for what is no policy, for several, and for containers, of which a private one publishes no port.
    """
    if len(names) != 1 or names[0] not in evaluation.policies():
        raise LabError(
            f"--stay keeps one policy in front, not {', '.join(names)}; known: {', '.join(evaluation.policies())}"
        )
    if runtime == "docker":
        raise LabError("--stay works with --runtime local: a container that ends with its command publishes no port")
    (name,) = names
    wanted = {name: service_settings.merged(service_settings.from_shell(name), given[name])}
    settings = checkpoints.complete([name], [name], wanted)[name]
    if dry_run:
        print(local.start_command(name, settings, attached=True))
        return
    volumes.require_writable()
    local.prepare([compose.read()[name].environment_name])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with status(f"starting {name}") as line:
        found = local.start(name, settings, instance_name=f"{name}-{os.getpid()}", attached=True)
        try:
            both.wait_ready(local, found.name, READY_TIMEOUT_S, line.update)
        except BaseException:
            local.close(found, keep_log=True)
            raise
    try:
        print(f"{name} {local.address(found)}", flush=True)
        while not found.has_ended():
            time.sleep(LOOK_S)
        raise LabError(f"{found.name} was ended from outside")
    finally:
        local.close(found, keep_log=False)
