"""`support`: one archive to attach to a question, of what somebody who helps asks for first, and without secrets."""

from __future__ import annotations

import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from vlalab.description import compose, environment_file
from vlalab.description.interpolation import read_dotenv
from vlalab.engine import building, docker
from vlalab.environments import locks, venvs
from vlalab.host import paths, secrets
from vlalab.host.console import LabError, say, status
from vlalab.runtimes import both, contained, logs

MODE = 0o600
LONGEST = 200_000  # characters of a log: its end
DOCTOR_S = 120.0
# Variables of the shell that are named, and those whose values are shown, in .env too. Of the lab's own variables these
# are the documented ones, without those that may hold a secret.
PREFIXES = ("VLALAB_", "DOCKER_", "COMPOSE_", "NVIDIA_", "CUDA_", "HF_", "UV_", "PIP_", "MUJOCO_", "LC_")
PROXIES = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY"}
HARMLESS = {
    "PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "HOME", "USER", "SHELL", "TERM", "TZ", "TMPDIR", "NO_PROXY",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
    "MUJOCO_GL", "MUJOCO_EGL_DEVICE_ID", "PYOPENGL_PLATFORM", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "XDG_RUNTIME_DIR",
    "DOCKER_CONTEXT", "COMPOSE_PROJECT_NAME", "HF_HOME", "HF_HUB_OFFLINE", "UV_OFFLINE", "UV_CACHE_DIR",
}  # fmt: skip
SECRET = {"VLALAB_TOKEN", "VLALAB_BRIDGE_KEY", "VLALAB_INDEX"}
README = """What is in here, made by `./lab support` on {when}:

{names}

Values that are secret, or look so, were replaced by {hidden}: tokens, passwords, keys, headers of authorization. Of
variables only values that are known to be harmless are here. Other things that programs print are as they were,
addresses and names of users and machines too: look before you send it.
"""


def write(target: Path | None, root: Path = paths.ROOT) -> Path:
    """Writes the archive, for its owner alone, says what is in it and returns where it lies.

    A part that cannot be had is replaced by the reason. Raises LabError where the file is there or cannot be written.
    """
    path = target or Path.cwd() / f"vla-lab-support-{platform.node() or 'host'}-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, MODE)
    except OSError as error:
        raise LabError(f"cannot write {path} ({error.strerror}); name another file: --out FILE") from error
    with os.fdopen(descriptor, "wb") as file, status("gathering"):
        parts = gather(root)
        names = "\n".join(f"  {name}" for name in parts)
        readme = README.format(when=time.strftime("%Y-%m-%d %H:%M:%S %z"), names=names, hidden=secrets.HIDDEN)
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in {"README.txt": readme, **parts}.items():
                data = text.encode()
                entry = tarfile.TarInfo(f"vla-lab-support/{name}")
                entry.size, entry.mode, entry.mtime = len(data), MODE, int(time.time())
                archive.addfile(entry, io.BytesIO(data))
    for name, text in parts.items():
        print(f"{name:<28} {len(text.encode()):>8} bytes")
    say(f"{sum(text.count(secrets.HIDDEN) for text in parts.values())} secrets were removed; the file is yours alone")
    return path


def gather(root: Path) -> dict[str, str]:
    """Returns the archive's files by name, their secrets removed."""
    known = known_secrets(root)
    parts: dict[str, Callable[[], str]] = {
        "doctor.json": lambda: _own(root, "doctor", "--json"),
        "status.json": lambda: _own(root, "status", "--json"),
        "versions.json": lambda: json.dumps(versions(), indent=1),
        "compose.yaml": compose_config,
        "variables.txt": lambda: variables(root),
        **{f"logs/{name}.log": (lambda name=name: _end_of(name)) for name in logs.names()},
        **{f"logs/{one.name}-container.log": (lambda one=one: _of_container(one)) for one in contained.everything()},
    }
    return {name: secrets.removed(_or_reason(make), known) for name, make in parts.items()}


def versions() -> dict[str, object]:
    """Returns what runs here: system, Python, the lab's commit, engine, driver, environments and how fit they are."""
    engine = docker.available()
    environments = {name: venvs.named(name) for name in paths.image_names()}
    return {
        "system": Path("/etc/os-release").read_text() if Path("/etc/os-release").exists() else platform.platform(),
        "kernel": platform.release(),
        "python": sys.version,
        "lab": {"commit": building.commit(), "root": str(paths.ROOT), "volume": str(paths.volume())},
        "docker": engine or json.loads(docker.run(["version", "--format", "{{json .}}"]).stdout),
        "nvidia": _words(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv"]),
        "environments": {name: "ready" if one.is_ready() else "not ready" for name, one in environments.items()},
        "locks": {name: one.inputs_hash() for name, one in locks.all_locks().items()},
    }


def compose_config() -> str:
    """Returns every service with its variables filled in: by Compose where there is an engine, else by our reader."""
    if docker.available() is None:
        return docker.compose(["--profile", "*", "config"]).stdout
    given = compose.environment_variables()
    return yaml.safe_dump({"services": {name: compose.filled(name, given) for name in compose.names()}})


def variables(root: Path) -> str:
    """Return the names in .env and those of the shell that change anything here, with the values of harmless ones.

    Comments in .env are left out, since they may hold an old token.
    """
    named = HARMLESS | PROXIES
    shell = {n: value for n, value in os.environ.items() if n.startswith(PREFIXES) or n.upper() in named}
    return f"# .env\n{_or_reason(lambda: _listed(read_dotenv(root / '.env')))}\n# the shell\n{_listed(shell)}"


def _listed(variables: Mapping[str, str]) -> str:
    harmless = HARMLESS | environment_file.documented() - SECRET
    shown = {name: value if name in harmless or not value else secrets.HIDDEN for name, value in variables.items()}
    return "".join(f"{name}={shown[name]}\n" for name in sorted(shown)) or "(none)\n"


def known_secrets(root: Path = paths.ROOT) -> set[str]:
    """Returns the secret values that are known: of the shell, of .env, and of what is up."""
    try:
        known = secrets.values(compose.environment_variables(root))
    except LabError:  # a .env that nobody can read; what looks like a secret is removed all the same
        known = secrets.values(os.environ)
    return known.union(*(secrets.values(one.started_with()) for one in both.instances()))


def _or_reason(make: Callable[[], str]) -> str:
    try:
        return make()
    except (LabError, OSError, ValueError, subprocess.SubprocessError) as error:
        return f"(could not be had: {error})\n"


def _own(root: Path, *words: str) -> str:
    """Return what a task of the lab prints; after it what it says, where it fails."""
    done = subprocess.run(
        [root / "lab", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=DOCTOR_S
    )
    return done.stdout or done.stderr


def _words(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"(no answer: {error})"


def _end_of(name: str) -> str:
    places = (logs.place(name), logs.place(name, attached=True))
    path = next(path for path in places if path.exists())
    return _last_lines(path.read_bytes().decode(errors="replace"))


def _of_container(found: contained.Container) -> str:
    done = docker.run(["logs", "--tail", "2000", found.container], check=False)
    return _last_lines(done.stdout + done.stderr)


def _last_lines(text: str) -> str:
    """Returns the end of a log, in whole lines: of one that is cut within a secret nothing would say what it is."""
    return text if len(text) <= LONGEST else text[-LONGEST:].partition("\n")[2]
