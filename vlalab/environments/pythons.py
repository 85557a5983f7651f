"""Find Python interpreters. Each candidate is run once: a pyenv shim may exist without a version."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from vlalab.host import owners
from vlalab.host.paths import ROOT

ASK = "import sys; print('%d.%d' % sys.version_info[:2]); print(sys.executable)"


def uv() -> str:
    """Return the uv of the host tool's own environment, else the one on PATH."""
    sibling = Path(sys.executable).parent / "uv"
    uv_path = str(sibling) if sibling.exists() else shutil.which("uv")
    if not uv_path:
        raise FileNotFoundError(f"uv not found next to {sys.executable} or on PATH; run ./lab, which installs it")
    return uv_path


def uv_environment() -> dict[str, str]:
    """Return the environment for uv: the system's certificates, and no project or venv of the caller's.

    It downloads Pythons into the clone if other users can read the clone but not the caller's home.
    """
    variables = {"UV_SYSTEM_CERTS": "1", "UV_HTTP_RETRIES": "8"}
    if not owners.readers_can_run(os.path.expanduser("~"), ROOT):
        variables["UV_PYTHON_INSTALL_DIR"] = str(ROOT / ".pythons")
    left_out = ("VIRTUAL_ENV", "UV_PYTHON", "PYTHONPATH")
    return {**variables, **{name: value for name, value in os.environ.items() if name not in left_out}}


def runs_as(path: str | Path, version: str) -> str | None:
    """Return the real path of the interpreter if `path` runs and is Python `version` ("3.10"), else None."""
    try:
        process = subprocess.run(
            [str(path), "-I", "-c", ASK], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = process.stdout.split("\n")
    return lines[1] if process.returncode == 0 and lines[0] == version else None


def find(version: str, directory: Path = ROOT) -> str | None:
    """Return an installed interpreter of that version: from PATH, the usual directories, pyenv, then uv.

    One that every reader of `directory` can run takes precedence.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    command = [uv(), "python", "find", "--no-project", "--no-python-downloads", version]
    process = subprocess.run(command, capture_output=True, text=True, env=uv_environment())
    candidates = [
        shutil.which(f"python{version}"),
        *(f"{place}/python{version}" for place in ("/usr/bin", "/usr/local/bin")),
        *sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True),
        process.stdout.strip() if process.returncode == 0 else None,
    ]
    first = None
    for path in candidates:
        if path and os.path.exists(path) and (interpreter := runs_as(path, version)):
            if owners.readers_can_run(interpreter, directory):
                return interpreter
            first = first or interpreter
    return first


def download(version: str, directory: Path = ROOT) -> str | None:
    """Return an interpreter that uv downloads from its own builds, or None where it cannot."""
    command = [uv(), "python", "install", "--no-bin", version]
    if subprocess.run(command, env=uv_environment(), stdin=subprocess.DEVNULL).returncode != 0:
        return None
    return find(version, directory)
