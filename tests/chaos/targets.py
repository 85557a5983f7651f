"""The services that are attacked: each its own program on a loopback port, as ./lab starts it, with memory to watch."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.processes import resident_mb
from tests.libero.harness import ENVIRONMENT, ROOT, wait_for
from tests.ports import free_ports
from vla_common import healthcheck

TOKEN = "chaos-token-1234"
START_S = 180.0


@dataclass
class Target:
    """One running service. `guarded`: it asks for TOKEN."""

    name: str
    process: subprocess.Popen
    url: str
    log: Path
    guarded: bool = False
    info: dict = field(default_factory=dict)

    def memory_mb(self) -> float:
        """Return what it and its children hold."""
        return resident_mb(self.process.pid)

    def stop(self) -> None:
        """End it and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def python_of(environment: str) -> Path | None:
    """Return the interpreter of an environment that is made; None where it is not."""
    directory = ROOT / "images" / environment / ".venv"
    return directory / "bin" / "python" if (directory / ".stamp").exists() else None


@dataclass(frozen=True)
class Recipe:
    """How a service is started: its environment, its words, where it says that it is ready."""

    environment: str
    words: tuple[str, ...]
    ready: str = "/readyz"
    guarded: bool = False


def policies(replayed: Path) -> dict[str, Recipe]:
    """Return the policies of this lab that run without a GPU. `replayed`: a run with recordings."""
    module = "services.libero.policies"
    return {
        "oracle": Recipe("libero", (module, "oracle")),
        "random": Recipe("libero", (module, "random")),
        "replay": Recipe("libero", (module, "replay", "--run", str(replayed))),
        "openvla": Recipe("openvla", ("services.openvla", "--checkpoint", "openvla-tiny")),
    }


def pages() -> dict[str, Recipe]:
    """Return the services of this lab that are for people."""
    root = ("--allow-root",) if os.geteuid() == 0 else ()
    return {
        "ui": Recipe("ui", ("services.ui", "--policy-url", "http://127.0.0.1:9")),
        "ws_mdl": Recipe("ws_mdl", ("vla_notebooks", "--of", "ws_mdl", *root), "/api", guarded=True),
        "hf": Recipe("hf", ("vla_notebooks", "--of", "hf", *root), "/api", guarded=True),
        "tensorboard": Recipe("ws_mdl", ("services.ws_mdl.tensorboard",), guarded=True),
    }


def start(name: str, recipe: Recipe, directory: Path) -> Target | str:
    """Return a started service, not yet ready; or why it cannot run here."""
    python = python_of(recipe.environment)
    if python is None:
        return f"environment {recipe.environment!r} is not made here (./lab env {recipe.environment})"
    inherited = {key: value for key, value in ENVIRONMENT.items() if not key.startswith("VLALAB_")}
    variables = {
        **inherited,
        "VLALAB_VOLUME": str(directory / "volume"),
        "HOME": str(directory / "home"),
        "TMPDIR": str(directory),
    }
    if recipe.guarded:
        variables["VLALAB_TOKEN"] = TOKEN
    if name == "openvla" and (problem := _checkpoint(python, variables)):
        return problem
    log, port = directory / f"{name}.log", free_ports(1)[0]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [str(python), "-m", recipe.words[0], *recipe.words[1:], "--port", str(port)], cwd=ROOT, env=variables,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    return Target(name, process, f"http://127.0.0.1:{port}", log, recipe.guarded)


def _checkpoint(python: Path, variables: dict[str, str]) -> str | None:
    command = [str(python), "-m", "services.openvla.checkpoints", "--tiny", "--suite", "libero_goal"]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    return f"no tiny checkpoint: {done.stderr[-300:]}" if done.returncode else None


def wait_ready(target: Target, recipe: Recipe) -> str | None:
    """Wait until a service is ready; returns why it is not, or None."""

    def look() -> bool:
        return target.process.poll() is not None or healthcheck.check(target.url + recipe.ready, 2.0)[0]

    try:
        wait_for(look, f"readiness of {target.name}", START_S)
    except AssertionError as error:
        return str(error)
    if target.process.poll() is not None:
        return f"it ended at its start: {target.log.read_text(errors='replace')[-400:]}"
    return None


def settled_mb(target: Target, seconds: float = 2.0) -> float:
    """Return the least memory seen within some seconds: what is on its way to be freed does not count."""
    end, minimum_mb = time.monotonic() + seconds, target.memory_mb()
    while time.monotonic() < end:
        time.sleep(0.5)
        minimum_mb = min(minimum_mb, target.memory_mb())
    return minimum_mb


def last_traceback(target: Target) -> str:
    """Return the last traceback in a service's log, its end only."""
    tracebacks = re.findall(r"Traceback[\s\S]*?\n\S*(?:Error|Exception)[^\n]*", target.log.read_text(errors="replace"))
    return tracebacks[-1][-500:] if tracebacks else ""
