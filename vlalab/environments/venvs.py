"""Install images/<env>/.venv from images/<env>/requirements.lock: the image's pins, without a container.

A variant of an environment ("openvla-cu130") has both in images/<env>/<variant>.

An environment is ready when its stamp matches; the stamp is written last, so an interrupted installation is repeated.
A file lock serializes concurrent calls.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vlalab.description import manifests
from vlalab.environments import pythons
from vlalab.host import owners
from vlalab.host.console import LabError, Status, log_info, status, unknown
from vlalab.host.paths import (
    ADMIN,
    CLUSTER,
    HUB,
    ROOT,
    WITHOUT_IMAGE,
    environment_directory,
    image_names,
    python_path,
    variant_names,
)  # fmt: skip
from vlalab.host.processes import die_with_parent

INSTALLATION = {  # Python → a way to install it
    "3.10": "Ubuntu 22.04: apt-get install python3.10",
    "3.11": "Debian 12: apt-get install python3.11",
    "3.12": "Ubuntu 24.04: apt-get install python3.12",
    "3.13": "Debian 13: apt-get install python3.13",
}
SIZE_GB = {ADMIN.name: 0.1, CLUSTER.name: 0.3, HUB.name: 0.4}  # of those without an image, which have no manifest


@dataclass(frozen=True)
class LocalEnvironment:
    """One environment on this machine: the directory images/<name> (or <name>) and its virtual environment."""

    name: str
    directory: Path

    @property
    def lock(self) -> Path:
        """The pinned packages with their hashes."""
        return self.directory / "requirements.lock"

    @property
    def data_lock(self) -> Path:
        """A second lock, of packages that are only read as data, since their module names collide with others'. They
        are installed into the environment's directory `beside`. Most environments have none.
        """
        return self.directory / "beside.lock"

    @property
    def venv(self) -> Path:
        """The virtual environment's directory."""
        return self.directory / ".venv"

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.venv / "bin" / "python"

    @property
    def lock_hash(self) -> str:
        """The lock's sha256, which is stored with every evaluation."""
        return hashlib.sha256(self.lock.read_bytes()).hexdigest()

    def variables(self) -> dict[str, str]:
        """Return the variables of its programs: import path, lock hash, PATH with its bin directory first."""
        return {
            "PYTHONPATH": python_path(),
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "VLALAB_LOCK_HASH": self.lock_hash,
            "VLALAB_VARIANT": self.variant,
            "VIRTUAL_ENV": str(self.venv),
            "PYTHONNOUSERSITE": "1",
        }

    def stamp(self) -> str:
        """Return the stamp of a finished environment: hashes of lock and later steps, path (a venv cannot move)."""
        files = [self.directory / name for name in ("finish.py", "beside.lock", "package-lock.json")]
        steps = b"".join(path.read_bytes() for path in files if path.exists())
        step = hashlib.sha256(steps).hexdigest()[:12] if steps else "-"
        return f"{self.lock_hash} {step} {self.venv}\n"

    def current_stamp(self) -> str:
        """Return the stamp of the installed environment, "" where it is not complete."""
        path = self.venv / ".stamp"
        return path.read_text() if path.exists() else ""

    def is_ready(self) -> bool:
        """Return whether the environment is complete, matches its lock, and can be run by the caller."""
        return os.access(self.python, os.X_OK) and self.current_stamp() == self.stamp()

    def needed_gb(self) -> float:
        """Return the disk space to install it, in GB: uv's cache and the environment, without shared files."""
        return 2 * (SIZE_GB.get(self.name) or self._manifest.venv_gb)

    @property
    def is_without_image(self) -> bool:
        """Whether it has no image; the tasks that need it install it."""
        return self.name in WITHOUT_IMAGE

    @property
    def versions(self) -> tuple[str, ...]:
        """The supported Pythons, preferred one first: the newer one has the newer Ansible."""
        if self.is_without_image:
            return manifests.PYTHONS[:: -1 if self.name == ADMIN.name else 1]
        return self._manifest.python

    @property
    def variant(self) -> str:
        """The part of its name after the hyphen, "" for the environment itself."""
        return self.name.partition("-")[2]

    @property
    def _manifest(self) -> manifests.EnvironmentManifest:
        return manifests.environment(self.name, self.directory.parents[1 if self.variant else 0])

    @property
    def installation(self) -> str:
        """Ways to install a supported Python, for messages."""
        packages = "; ".join(INSTALLATION[version] for version in sorted(self.versions))
        return f"{packages}; elsewhere: pyenv install {self.versions[0]}"


def get(name: str, root: Path = ROOT) -> LocalEnvironment:
    """Return the environment of that name. Raises LabError if its directory or its lock does not exist."""
    env = LocalEnvironment(name, environment_directory(name, root))
    if not env.lock.exists():
        raise LabError(unknown("environment", name, [*image_names(), *variant_names(), *WITHOUT_IMAGE]))
    return env


def ensure(name: str, root: Path = ROOT) -> LocalEnvironment:
    """Return the environment; install it or update it to its lock first, if needed."""
    env = get(name, root)
    host = owners.owner_if_root(root)
    if env.is_ready() and (host is None or env.venv.lstat().st_uid == host.uid):
        return env
    if host:  # the clone's owner installs it; files that an earlier root left are removed first
        for left in (env.venv, env.directory / ".venv.lock"):
            if os.path.lexists(left) and left.lstat().st_uid != host.uid:
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        whose = owners.user_name(host.uid)
        log_info(f"{root} belongs to {whose}; installing environment '{name}' as that user")
        command = [sys.executable, "-I", "-m", "vlalab.environments.venvs", name, str(root)]
        if subprocess.run(command, stdin=subprocess.DEVNULL, cwd=root, **host.process(root)).returncode != 0:
            raise LabError(f"environment '{name}' could not be installed as {whose}; see the messages above")
        return env
    if not os.access(env.directory, os.W_OK | os.X_OK):
        whose = owners.user_name(env.directory.stat().st_uid)
        raise LabError(
            f"environment '{name}' of {root}, which is {whose}'s, is not installed from its lock, or its Python cannot "
            f"be run by you. Ask {whose} to run {root}/lab env {name}, or use a clone of your own"
        )
    with file_lock(env.directory / ".venv.lock", f"another call is setting up '{name}'"):
        if not env.is_ready():
            _make(env)
    return env


@contextmanager
def file_lock(path: Path, waiting: str) -> Iterator[None]:
    """Hold a file lock; print `waiting` if another process holds it."""
    try:
        handle = path.open("a" if os.access(path, os.W_OK) or not path.exists() else "r")  # either can be locked
    except OSError as error:
        raise LabError(f"cannot write {path} ({error.strerror}); make the clone writable for this user") from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log_info(f"{waiting}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _make(env: LocalEnvironment) -> None:
    is_reusable = env.current_stamp().endswith(f" {env.venv}\n") and env.python.exists()
    (env.venv / ".stamp").unlink(missing_ok=True)
    if not is_reusable:
        need, free = env.needed_gb(), shutil.disk_usage(env.directory).free / 1e9
        if free < need:
            raise LabError(
                f"environment '{env.name}' needs about {need:.1f} GB; {env.directory} has {free:.1f} GB free"
            )
        shutil.rmtree(env.venv, ignore_errors=True)
        if env.venv.exists():
            whose = owners.user_name(env.venv.stat().st_uid)
            raise LabError(f"cannot replace {env.venv}, which belongs to {whose}; as {whose} run: rm -r {env.venv}")
        uv(["venv", "--no-project", "--python", _interpreter(env), str(env.venv)])
    count = sum(line[:1].isalnum() for line in env.lock.read_text().splitlines())
    with status(f"installing environment '{env.name}' ({count} packages)") as line:
        sync = ["pip", "sync", "--require-hashes", "--compile-bytecode", "--python", str(env.python), str(env.lock)]
        uv(sync, line)
        if env.data_lock.exists():
            target = env.venv / "beside"
            shutil.rmtree(target, ignore_errors=True)
            install = ["pip", "install", "--no-deps", "--require-hashes", "--python", str(env.python)]
            uv([*install, "--target", str(target), "-r", str(env.data_lock)], line)
        script = env.directory / "finish.py"  # the environment's own last step, which its Dockerfile runs too
        if script.exists():
            line.update(f"running images/{env.name}/{script.name}")
            done = subprocess.run([str(env.python), str(script)], capture_output=True, text=True)
            if done.returncode != 0:
                raise LabError(f"{script} failed:\n{done.stdout}{done.stderr}")
    (env.venv / ".stamp").write_text(env.stamp())


def _interpreter(env: LocalEnvironment) -> str:
    """Return a Python for an environment, preferably one that every reader of the clone can run."""
    installed = [python for version in env.versions if (python := pythons.find(version, env.directory))]
    python = next((python for python in installed if owners.readers_can_run(python, env.directory)), None)
    if python:
        log_info(f"environment '{env.name}' uses {python}")
        return python
    lack = f"other users cannot run {installed[0]}" if installed else "none is installed"
    versions = " or ".join(env.versions)
    log_info(f"environment '{env.name}' needs Python {versions}: {lack}; downloading {env.versions[0]} with uv")
    python = pythons.download(env.versions[0], env.directory) or next(iter(installed), None)
    if python:
        return python
    raise LabError(
        f"environment '{env.name}' needs Python {versions}; none is installed and uv could not download one. Install "
        f"it ({env.installation}) and call again"
    )


def uv(arguments: list[str], line: Status | None = None) -> None:
    """Run uv and display its last line. Raises LabError with the end of its output if it fails."""
    process = subprocess.Popen(
        [pythons.uv(), *arguments],
        env=pythons.uv_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, preexec_fn=die_with_parent(),
    )  # fmt: skip
    output: list[str] = []
    assert process.stderr is not None
    try:
        for text in process.stderr:
            output.append(text.rstrip())
            if line:
                line.update(text.strip())
    except BaseException:  # Ctrl-C: uv must not run on, since the next call may start at once
        process.terminate()
        process.wait()
        raise
    if process.wait() != 0:
        raise LabError(f"uv {' '.join(arguments[:2])} failed:\n" + "\n".join(output[-20:]))


if __name__ == "__main__":  # as the owner of a clone in which root works
    try:
        ensure(sys.argv[1], Path(sys.argv[2]))
    except LabError as error:
        sys.exit(error.message)
