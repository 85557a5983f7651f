"""Several users on one machine, for real: two students on an install that is root's, root in a student's clone."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import pytest

from tests.host.conftest import pins, with_few_packages
from tests.ports import free_ports
from vlalab.description import manifests, ports
from vlalab.environments import pythons
from vlalab.host import owners, paths

ANNA, BERT = 54331, 54332  # the machine does not know them, and they have no home but the one they are told
CONTRACT = ("annotated-doc", "annotated-types", "anyio", "click", "exceptiongroup", "fastapi", "fastapi-offline",
            "h11", "httptools", "idna", "msgpack", "numpy", "opentelemetry-api", "prometheus-client", "pydantic",
            "pydantic-core", "starlette", "typing-extensions", "typing-inspection", "uvicorn", "uvloop")  # fmt: skip
FLAGS = ("tyro", "docstring-parser", "typeguard")  # what a policy's program needs beyond the contract
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two other users; this run is one user's")


@pytest.fixture(scope="module")
def place():
    """A folder that every user may enter: pytest's own are closed to others."""
    directory = Path(tempfile.mkdtemp(prefix="vlalab-users-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def small(clone: Path) -> Path:
    """Gives a clone and its environment libero few packages: the tool's, and those of the policy started here."""
    directory = clone / "images" / "libero"
    contract = clone / "tests" / "contract" / "requirements.lock"
    lock = pins(*CONTRACT, lock=contract) + pins(*FLAGS, lock=directory / "requirements.lock")
    (directory / "requirements.lock").write_text(lock)
    (directory / "finish.py").unlink()
    return with_few_packages(clone, "uv")


def command(uid: int, home: Path, clone: Path, *words: str, **variables: str) -> dict:
    """Returns what subprocess needs to run `./lab` as a user who has logged in."""
    own = {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", **variables}
    return {
        "args": ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", str(clone / "lab"), *words],
        "env": own, "cwd": "/", "stdin": subprocess.DEVNULL, "text": True,
    }  # fmt: skip


def lab(uid: int, home: Path, clone: Path, *words: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(**command(uid, home, clone, *words, **variables), capture_output=True, timeout=600)


def belongings(directory: Path) -> set[int]:
    return {path.lstat().st_uid for path in (directory, *directory.rglob("*"))}


def home_of(place: Path, uid: int) -> Path:
    home = place / f"home-{uid}"
    home.mkdir(mode=0o700, exist_ok=True)
    os.chown(home, uid, uid)
    return home


# --- one install for many -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def install(place, copy_clone):
    """What root installed for all: its .venv and one environment, set up by root's own `./lab`."""
    if not python_of_all():
        pytest.skip("no Python 3.10 or 3.11 that every user can run")
    clone = small(copy_clone(place / "install"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLALAB_", "PYTHON"))}
    done = subprocess.run([clone / "lab", "env", "libero"], env=kept, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    return clone


def python_of_all() -> bool:
    found = [pythons.find(version, Path("/usr")) for version in manifests.PYTHONS]
    return any(one and owners.is_world_readable(one) for one in found)


def contents(clone: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.lstat().st_mtime_ns, p.lstat().st_uid) for p in (clone, *clone.rglob("*"))}


@pytest.fixture
def students(place, install):
    """Anna and Bert; what they started ends with the test."""
    yield {uid: home_of(place, uid) for uid in (ANNA, BERT)}
    for uid in (ANNA, BERT):
        lab(uid, place / f"home-{uid}", install, "down")


@as_root
def test_what_root_installs_is_on_a_python_that_all_can_run(install):
    for python in (install / ".venv/bin/python", install / "images/libero/.venv/bin/python"):
        assert owners.is_world_readable(python), f"{python} leads to {python.resolve()}"


@as_root
def test_two_students_at_once_on_one_install(install, students):
    """The same port is free for both when they choose: they get different ones, and neither sees the other's."""
    (port,) = free_ports(1)
    before = contents(install)
    wanted = {"VLALAB_RANDOM_PORT": str(port)}
    begun = [
        subprocess.Popen(**command(uid, home, install, "up", "random", **wanted), stdout=-1, stderr=subprocess.STDOUT)
        for uid, home in students.items()
    ]
    said = [process.communicate(timeout=300)[0] for process in begun]
    assert [process.returncode for process in begun] == [0, 0], "\n".join(said)
    urls = {}
    for uid, home in students.items():
        status = lab(uid, home, install, "status").stdout
        (row,) = [line for line in status.splitlines() if line.startswith("random ")]
        assert "healthy" in row and str(home / "vla-lab") in status, "own service, own volume"
        urls[uid] = row.split()[-1]
        with urllib.request.urlopen(f"{urls[uid]}/readyz", timeout=20) as answer:
            assert answer.status == 200
        assert belongings(home) == {uid}
    assert len(set(urls.values())) == 2 and f"http://127.0.0.1:{port}" in urls.values()
    assert "Running: none" not in (refused := lab(BERT, students[BERT], install, "down", "oracle").stderr), refused
    assert contents(install) == before, "nothing was written into the install"


@as_root
def test_an_environment_that_the_install_lacks_is_queried_of_its_owner(install, students):
    done = lab(ANNA, students[ANNA], install, "env", "ui")
    wanted = f"Ask root to run {install}/lab env ui"
    assert done.returncode == 1 and wanted in done.stderr and "Traceback" not in done.stderr


@as_root
def test_one_on_a_python_that_is_closed_is_reported(place, copy_clone):
    """As an install that was made on a Python in root's home."""
    clone, closed = copy_clone(place / "closed-install"), place / "closed"
    closed.mkdir(mode=0o700, exist_ok=True)
    (closed / "python").symlink_to(sys.executable)
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "bin" / "python").symlink_to(closed / "python")
    done = lab(ANNA, home_of(place, ANNA), clone, "status")
    assert (
        done.returncode == 1
        and "belongs to root, and you have no permission for the Python of its .venv" in done.stderr
    )


# --- root in a student's clone ------------------------------------------------------------------------------


@as_root
def test_what_root_sets_up_in_a_students_clone_is_the_students(place, copy_clone):
    if not python_of_all():
        pytest.skip("no Python 3.10 or 3.11 that every user can run")
    home = home_of(place, ANNA)
    clone = small(copy_clone(home / "lab"))
    for path in (clone, *clone.rglob("*")):
        os.chown(path, ANNA, ANNA, follow_symlinks=False)
    for left in (clone / ".venv", clone / "images/libero/.venv"):  # as an earlier root's set-up left it
        left.mkdir()
        (left / "file").write_text("")
    (clone / "images/libero/.venv.lock").write_text("")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLALAB_", "PYTHON"))}
    for words in (["env", "libero"], ["up", "random"], ["status"], ["down"]):
        done = subprocess.run([clone / "lab", *words], env=kept, capture_output=True, text=True, cwd="/")
        assert done.returncode == 0, done.stderr
    strangers = [str(path) for path in (clone, *clone.rglob("*")) if path.lstat().st_uid != ANNA]
    assert strangers == [], "root's files in a student's clone"
    used = lab(ANNA, home, clone, "env", "libero")
    assert (used.returncode, used.stderr) == (0, ""), "the student uses what root set up"
    removed = ["setpriv", f"--reuid={ANNA}", f"--regid={ANNA}", "--clear-groups", "rm", "-r", str(clone)]
    assert subprocess.run(removed, cwd="/").returncode == 0 and not clone.exists()


def test_the_volume_of_who_may_not_write_into_the_install_is_in_the_home(tmp_path, monkeypatch):
    clones = tmp_path / "lab" / "shared" / "volume"
    clones.mkdir(parents=True)
    assert paths.default_volume(clones) == clones
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(paths.os, "access", lambda path, mode: Path(path) == tmp_path)
    assert paths.default_volume(clones) == tmp_path / "vla-lab"


# --- ports --------------------------------------------------------------------------------------------------

CHOOSE = """
import sys, time
from vlalab.description import ports
print(next(ports._free_ports("127.0.0.1", int(sys.argv[1]), set())), flush=True)
time.sleep(60)
"""


def is_unused(port: int) -> bool:
    with socket.socket() as held:
        return held.connect_ex(("127.0.0.1", port)) != 0


def test_a_port_that_another_call_has_chosen_is_not_free():
    """Nobody listens yet: a service takes seconds to. The port is one that the kernel gives to no other program."""
    first_fixed = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[1]) + 1
    port = next(port for port in range(first_fixed, 65536) if is_unused(port))
    variables = {**os.environ, "PYTHONPATH": paths.python_path()}
    other = subprocess.Popen([sys.executable, "-c", CHOOSE, str(port)], stdout=-1, text=True, env=variables)
    try:
        assert other.stdout.readline().strip() == str(port)
        assert next(ports._free_ports("127.0.0.1", port, set())) != port
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
        other.stdout.close()
    assert next(ports._free_ports("127.0.0.1", port, set())) == port, "it goes with the process"
    assert next(ports._free_ports("127.0.0.1", port, set())) == port, "one's own choice stands"
