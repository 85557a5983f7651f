"""The docker CLI: engine probe, commands, JSON output, Compose. Only this module calls it.

The CLI is used instead of the Docker SDK: it handles contexts, credentials and plugins, and has no import time.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from vlalab.host.console import LabError
from vlalab.host.paths import ROOT

ENGINE = (25, 0)  # the first whose health checks know start_interval
PLUGINS = {"buildx": (0, 12), "compose": (2, 21)}
PROBE_S = 20.0  # time limit of the probe
INSTALL = "install Docker Engine (docs.docker.com/engine/install) or use --runtime local"


# --- probe --------------------------------------------------------------------------------------------------


def available() -> str | None:
    """Return None if a Docker engine answers, else the problem and its fix in one sentence. 10 ms; cached."""
    return _probe(os.environ.get("PATH", ""), os.environ.get("DOCKER_HOST", ""), os.environ.get("DOCKER_CONTEXT", ""))


def forget_probe() -> None:
    """Clear the cached probe, in a process that outlives a command."""
    _probe.cache_clear()


@functools.lru_cache(maxsize=8)
def _probe(path: str, host: str, context: str) -> str | None:
    cli = shutil.which("docker", path=path)
    if cli is None:
        return missing_command()
    try:
        process = subprocess.run(
            [cli, "version", "--format", "{{json .}}"], capture_output=True, text=True, stdin=subprocess.DEVNULL,
            timeout=PROBE_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return no_answer(PROBE_S)
    except OSError as error:
        return f"{cli} cannot be run ({error.strerror}); {INSTALL}"
    return engine_problem(process.returncode, process.stdout, process.stderr, cli)


def missing_command() -> str:
    """Return the message for a missing docker command."""
    return f"docker command not found on PATH; {INSTALL}"


def no_answer(seconds: float) -> str:
    """Return the message for an engine that does not answer in time."""
    return f"the Docker engine did not answer within {seconds:.0f} s; restart it: sudo systemctl restart docker"


def engine_problem(code: int, out: str, err: str, cli: str) -> str | None:
    """Return an engine's problem and its fix, from the JSON output of `docker version`; None if it can be used."""
    if "podman" in err.lower():
        return f"the docker command is podman's, which does not support Compose and the builds; {INSTALL}"
    if code == 0:
        engine_version = (json.loads(out).get("Server") or {}).get("Version", "")
        if version(engine_version) >= ENGINE:
            return None
        return f"the Docker engine is version {engine_version}; {ENGINE[0]}.{ENGINE[1]} or newer is needed: {INSTALL}"
    first = err.strip().partition("\n")[0] or "no message"
    if "permission denied" in err:
        return (
            "no permission for the Docker engine's socket; use --runtime local, or Docker's rootless mode "
            "(docs.docker.com/engine/security/rootless), or join its group, which makes you as good as root here: "
            "sudo usermod -aG docker $USER, then log out and in again"
        )
    if os.environ.get("DOCKER_HOST"):
        return f"no Docker engine answers at DOCKER_HOST ({first}); start it, or unset DOCKER_HOST"
    if "/snap/" in os.path.realpath(cli) or cli.startswith("/snap/"):
        return "the snap Docker does not answer; start it: sudo snap start docker (for GPUs, use Docker's own packages)"
    if "desktop" in err:
        return "Docker Desktop is not running; start it: systemctl --user start docker-desktop (it gives no GPU)"
    at = re.search(r"daemon at (\S+?)\.? ", first + " ")
    return f"no Docker engine answers{f' at {at[1]}' if at else f' ({first})'}; start it: sudo systemctl start docker"


def require(*plugins: str) -> None:
    """Raise LabError unless an engine answers and these plugins ("buildx", "compose") are recent enough. 0.2 s each."""
    for problem in (available(), *map(plugin_problem, plugins)):
        if problem:
            raise LabError(problem)


@functools.cache
def plugin_problem(plugin: str) -> str | None:
    """Return the problem of a CLI plugin ("buildx" or "compose") and its fix, or None."""
    process = subprocess.run(["docker", plugin, "version"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return plugin_version_problem(plugin, process.returncode, process.stdout)


def plugin_version_problem(plugin: str, code: int, out: str) -> str | None:
    """Return the problem of a CLI plugin, from the output of `docker PLUGIN version`, or None."""
    major, minor = PLUGINS[plugin]
    fix = f"sudo apt-get install docker-{plugin}-plugin (Docker's packages) or docker-{plugin} (Debian, Ubuntu)"
    if code != 0:
        return f"docker has no {plugin} plugin; {major}.{minor} or newer is needed: {fix}"
    has = version(out)
    if has < (major, minor):
        return f"docker {plugin} is version {has[0]}.{has[1]}; {major}.{minor} or newer is needed: {fix}"
    return None


def version(text: str) -> tuple[int, int]:
    """Return the first major.minor number in a text, (0, 0) when there is none."""
    match = re.search(r"(?<![\w.])v?(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


# --- commands -----------------------------------------------------------------------------------------------


def command(args: Sequence[str]) -> list[str]:
    """Return the command line of `docker args`, as a dry run prints it and as it is run."""
    return ["docker", *map(str, args)]


def run(
    args: Sequence[str], *, check: bool = True, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `docker args` and return it with its output as text. variables: in addition to the process's own.

    Raises LabError if no engine answers or, with `check`, if the command fails.
    """
    require()
    done = subprocess.run(
        command(args), capture_output=True, text=True, errors="replace", cwd=ROOT, stdin=subprocess.DEVNULL,
        env={**os.environ, **(variables or {})},
    )  # fmt: skip
    if check and done.returncode != 0:
        raise LabError(failure(args, done.stderr or done.stdout))
    return done


def stream(args: Sequence[str], *, variables: Mapping[str, str] | None = None) -> int:
    """Run `docker args` on the caller's terminal (builds, logs, shells) and return its exit code."""
    require()
    return subprocess.run(command(args), cwd=ROOT, env={**os.environ, **(variables or {})}).returncode


def open_pipe(args: Sequence[str], **options) -> subprocess.Popen:
    """Start `docker args` in binary mode and return its process. options: those of Popen (stdin, stdout …)."""
    require()
    return subprocess.Popen(command(args), cwd=ROOT, **options)


def json_lines(args: Sequence[str]) -> list[dict]:
    """Return the JSON output of `docker args`: one object per line (--format json), or one array (inspect)."""
    return parse_json(run(args).stdout)


def parse_json(text: str) -> list[dict]:
    """Return the objects of a text that holds a JSON array, or one JSON object per line."""
    if text.lstrip().startswith("["):
        return json.loads(text)
    return [json.loads(line) for line in text.splitlines() if line.strip()]


# --- Compose ------------------------------------------------------------------------------------------------


def compose_args(args: Sequence[str], files: Sequence[str | Path] = ()) -> list[str]:
    """Return docker's arguments for `compose args` over this repository. files: in addition to compose.yaml."""
    file_flags = [word for path in (ROOT / "compose.yaml", *files) for word in ("--file", str(path))]
    return ["compose", "--project-directory", str(ROOT), *file_flags, *map(str, args)]


def compose(
    args: Sequence[str], *, files: Sequence[str | Path] = (), variables: Mapping[str, str] | None = None
) -> None:
    """Run `docker compose args` over compose.yaml and `files`. Raises LabError if it fails or is too old."""
    arguments = compose_args(args, files)
    done = run(arguments, check=False, variables=variables)
    if done.returncode != 0:  # the version is queried only now, since that takes 0.2 s
        raise LabError(plugin_problem("compose") or failure(arguments, done.stderr or done.stdout))


# --- errors of the engine -----------------------------------------------------------------------------------

# The engine's message (a regular expression) → advice.
ADVICE = {
    r"could not select device driver|unknown or invalid runtime name: nvidia": "no-gpu",
    r"Failed to initialize NVML": "the container lost its GPU after a reload of the engine; run: ./lab restart SERVICE",
    r"no space left on device": "the disk is full; see what can be freed: ./lab clean",
    r"non-overlapping IPv4 address pool|address pools have been fully subnetted": "the engine has no addresses for "
    "another network; remove unused ones: docker network prune, or have more: sudo ./lab host setup --only engine",
    r"port is already allocated|address already in use": "another program has that port; choose another (.env.example)",
    r"x509|certificate signed by unknown authority": "the engine does not trust this network's certificate authority; "
    "the build takes it with --ca-bundle FILE, pulling needs it in the system's bundle and a restart of the engine",
    r"failed to resolve source metadata|pull access denied|failed to resolve reference|no such host|i/o timeout": "an "
    "image could not be pulled; without internet, bring the images with ./lab restore FILE, or name a base with --base",
    r"network timeout|operation timed out|Read timed out": "a download in a container hung; ./lab doctor says whether "
    "Docker's networks have a larger MTU than this machine's",
    r"No such image": "build it: ./lab build ENV",
}


def advice(message: str) -> str | None:
    """Return advice for an engine's message, or None."""
    hint = next((text for pattern, text in ADVICE.items() if re.search(pattern, message)), None)
    return gpu_problem() if hint == "no-gpu" else hint


def failure(args: Sequence[str], message: str) -> str:
    """Return the message for a failed command: the command, the end of its output, advice."""
    last = "\n  ".join(message.strip().splitlines()[-8:]) or "no output"
    hint = advice(message)
    return f"`{shlex.join(command(args))}` failed:\n  {last}" + (f"\n{hint}" if hint else "")


@functools.cache
def info() -> dict:
    """Return the output of `docker info` (DockerRootDir, Runtimes, OperatingSystem, SecurityOptions …). 0.3 s."""
    return json.loads(run(["info", "--format", "{{json .}}"]).stdout)


def gpu_problem(details: Mapping | None = None) -> str:
    """Return why containers get no GPU, and the fix: snap Docker, Docker Desktop, or no toolkit.

    details: the output of `docker info`; default: this machine's.
    """
    details = info() if details is None else details
    if "Docker Desktop" in details.get("OperatingSystem", ""):
        return "Docker Desktop's containers run in a virtual machine without the GPU: docker context use default"
    if "/snap/" in details.get("DockerRootDir", ""):
        return (
            f"the snap Docker cannot reach the GPU's driver: sudo snap remove docker, then {INSTALL.split(' or ')[0]}"
        )
    return (
        "the engine has no NVIDIA runtime: install nvidia-container-toolkit, then run: "
        "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
    )


def has_gpu_runtime(details: Mapping | None = None) -> bool:
    """Return whether NVIDIA's runtime is registered; the toolkit's programs on PATH do not imply it."""
    return "nvidia" in ((info() if details is None else details).get("Runtimes") or {})


def is_rootless(details: Mapping | None = None) -> bool:
    """Return whether the engine runs as a user: root in a container is then that user outside."""
    return _has_security_option("rootless", info() if details is None else details)


def volume_problem(details: Mapping) -> str | None:
    """Return why containers cannot use the volume, and the fix, from the output of `docker info`; None if they can."""
    if not _has_security_option("userns", details):
        return None
    return (
        "the engine uses userns-remap: users in containers map to other users, who cannot read or write the volume; "
        "use --runtime local, or remove it from /etc/docker/daemon.json and run: sudo systemctl restart docker"
    )


def _has_security_option(name: str, details: Mapping) -> bool:
    return any(option.partition(",")[0] == f"name={name}" for option in details.get("SecurityOptions") or ())
