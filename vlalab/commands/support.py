"""`support`: an archive to attach to a support request: findings, versions, settings, logs; no secrets."""

from __future__ import annotations

import functools
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from vlalab.description import compose, environment_file
from vlalab.description.environment_file import read_dotenv
from vlalab.engine import building, docker
from vlalab.environments import venvs
from vlalab.host import paths, secrets
from vlalab.host.console import LabError, log_info, status
from vlalab.runtimes import containers, interface, logs

MODE = 0o600
MAX_LOG = 200_000  # characters; the end of a longer log
COMMAND_S = 120.0
# Shell variables to list by name; values only of harmless and of the lab's documented ones.
PREFIXES = ("VLALAB_", "DOCKER_", "COMPOSE_", "NVIDIA_", "CUDA_", "HF_", "UV_", "PIP_", "MUJOCO_", "LC_")
PROXIES = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY"}
HARMLESS = {
    "PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "HOME", "USER", "SHELL", "TERM", "TZ", "TMPDIR", "NO_PROXY",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
    "MUJOCO_GL", "MUJOCO_EGL_DEVICE_ID", "PYOPENGL_PLATFORM", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "XDG_RUNTIME_DIR",
    "DOCKER_CONTEXT", "COMPOSE_PROJECT_NAME", "HF_HOME", "HF_HUB_OFFLINE", "UV_OFFLINE", "UV_CACHE_DIR",
}  # fmt: skip
SECRET = {"VLALAB_TOKEN", "VLALAB_BRIDGE_KEY", "VLALAB_INDEX"}
README = """Contents, collected by `./lab support` on {when}:

{names}

Values that are secret, or look secret, were replaced by {hidden}; variables are listed with harmless values only.
Everything else is unchanged program output, including addresses and names of users and machines: check it before you
send it.
"""


def write(target: Path | None, root: Path = paths.ROOT) -> Path:
    """Write the archive, readable by its owner only, list its files and return its path.

    A part that cannot be collected is replaced by the reason. Raise LabError if the file exists or cannot be written.
    """
    path = target or Path.cwd() / f"vla-lab-support-{platform.node() or 'host'}-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, MODE)
    except OSError as error:
        raise LabError(f"cannot write {path} ({error.strerror}); name another file: --out FILE") from error
    with os.fdopen(descriptor, "wb") as file, status("collecting"):
        parts = gather(root)
        names = "\n".join(f"  {name}" for name in parts)
        readme = README.format(when=time.strftime("%Y-%m-%d %H:%M:%S %z"), names=names, hidden=secrets.HIDDEN)
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in {"README.txt": readme, **parts}.items():
                entry = tarfile.TarInfo(f"vla-lab-support/{name}")
                entry.size, entry.mode, entry.mtime = len(text.encode()), MODE, int(time.time())
                archive.addfile(entry, io.BytesIO(text.encode()))
    for name, text in parts.items():
        print(f"{name:<28} {len(text.encode()):>8} bytes")
    removed = sum(text.count(secrets.HIDDEN) for text in parts.values())
    log_info(f"{removed} secrets removed; only you can read the file")
    return path


def gather(root: Path) -> dict[str, str]:
    """Return the archive's files by name, without secrets."""
    secret_values = current_secrets(root)

    def services() -> str:
        environment = compose.environment_variables()
        return yaml.safe_dump({"services": {name: compose.filled(name, environment) for name in compose.names()}})

    def service_log(name: str) -> str:
        path = next(path for path in (logs.log_path(name), logs.log_path(name, attached=True)) if path.exists())
        return _last_lines(path.read_bytes().decode(errors="replace"))

    def container_log(container: containers.Container) -> str:
        done = docker.run(["logs", "--tail", "2000", container.container], check=False)
        return _last_lines(done.stdout + done.stderr)

    parts: dict[str, Callable[[], str]] = {
        "doctor.json": lambda: _output([root / "lab", "doctor", "--json"]),
        "status.json": lambda: _output([root / "lab", "status", "--json"]),
        "versions.json": lambda: json.dumps(versions(), indent=1),
        "compose.yaml": services,  # with interpolated variables
        "variables.txt": lambda: variables(root),
    }
    parts |= {f"logs/{name}.log": functools.partial(service_log, name) for name in logs.names()}
    parts |= {f"logs/{c.name}-container.log": functools.partial(container_log, c) for c in containers.everything()}
    return {name: secrets.redact(_or_reason(make), secret_values) for name, make in parts.items()}


def versions() -> dict[str, object]:
    """Return the versions of system, Python, lab and engine, and the state of every environment."""
    engine = docker.available()
    return {
        "system": Path("/etc/os-release").read_text() if Path("/etc/os-release").exists() else platform.platform(),
        "kernel": platform.release(),
        "python": sys.version,
        "lab": {"commit": building.commit(), "root": str(paths.ROOT), "volume": str(paths.volume())},
        "docker": engine or json.loads(docker.run(["version", "--format", "{{json .}}"]).stdout),
        "environments": {n: "ready" if venvs.get(n).is_ready() else "not ready" for n in paths.image_names()},
    }


def variables(root: Path) -> str:
    """Return the variables of .env and the relevant ones of the shell, with the values of harmless ones.

    Comments in .env are omitted, since they may contain an old token.
    """
    harmless = HARMLESS | environment_file.documented() - SECRET

    def listed(values: Mapping[str, str]) -> str:
        displayed = {name: value if name in harmless or not value else secrets.HIDDEN for name, value in values.items()}
        return "".join(f"{name}={displayed[name]}\n" for name in sorted(displayed)) or "(none)\n"

    shell = {n: v for n, v in os.environ.items() if n.startswith(PREFIXES) or n.upper() in HARMLESS | PROXIES}
    return f"# .env\n{_or_reason(lambda: listed(read_dotenv(root / '.env')))}\n# the shell\n{listed(shell)}"


def current_secrets(root: Path = paths.ROOT) -> set[str]:
    """Return the known secret values: those of the shell, of .env, and of running services."""
    try:
        values = secrets.secret_values(compose.environment_variables(root))
    except LabError:  # .env cannot be read; values that look secret are removed anyway
        values = secrets.secret_values(os.environ)
    return values.union(*(secrets.secret_values(instance.started_with()) for instance in interface.instances()))


def _or_reason(make: Callable[[], str]) -> str:
    try:
        return make()
    except (LabError, OSError, ValueError, subprocess.SubprocessError) as error:
        return f"(not available: {error})\n"


def _output(command: Sequence[str | Path]) -> str:
    """Return a command's stdout, or its stderr if stdout is empty."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=COMMAND_S)
    return done.stdout or done.stderr


def _last_lines(text: str) -> str:
    """Return the end of a log in whole lines, since half a secret would not be recognised."""
    return text if len(text) <= MAX_LOG else text[-MAX_LOG:].partition("\n")[2]
