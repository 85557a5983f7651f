"""`./lab` on a fresh clone: set-up, its repair, two calls at once, other users, machines without venv."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from shlex import quote

import invoke
import pytest

from tests.host.conftest import with_few_packages

CLEAN = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV", "VLALAB_PYTHON")}


def run(clone: Path, *words: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(clone / "lab"), *words],
        env={**CLEAN, **options.pop("env", {})}, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options,
    )  # fmt: skip


def test_another_system_is_told_what_is_supported_and_nothing_is_made(fresh_clone, tmp_path):
    """With a `uname` and a `stat` as macOS has them."""
    for name, script in (("uname", "echo Darwin"), ("stat", "echo 'stat: illegal option -- c' >&2; exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    done = run(fresh_clone, "status", env={"PATH": f"{tmp_path}:{CLEAN['PATH']}"})
    assert done.returncode == 1 and done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert "Darwin is not supported" in done.stderr and "Linux container" in done.stderr
    assert not (fresh_clone / ".venv").exists()


def test_first_use_sets_up_once_from_any_directory(fresh_clone, tmp_path):
    first = run(fresh_clone, "--list", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "eval" in first.stdout and "test" in first.stdout
    assert "first use" in first.stderr
    again = run(fresh_clone, cwd="/")
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == first.stdout
    uv = subprocess.run([fresh_clone / ".venv/bin/uv", "--version"], capture_output=True, text=True)
    assert uv.stdout.startswith("uv ")


def test_invoke_of_the_venv_is_the_launcher(fresh_clone):
    run(fresh_clone)
    listed = subprocess.run([fresh_clone / ".venv/bin/invoke", "--list"], capture_output=True, text=True)
    assert "eval" in listed.stdout


def test_another_pythons_invoke_hands_over_to_the_launcher(fresh_clone, tmp_path):
    run(fresh_clone)
    (tmp_path / "packages").mkdir()
    for path in Path(invoke.__file__).parents[1].glob("invoke*"):
        (tmp_path / "packages" / path.name).symlink_to(path)
    script = tmp_path / "invoke"  # without yaml and rich, as pipx and the distribution have it
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path / 'packages')!r})\n"
        "from invoke.main import program\nprogram.run()\n"
    )
    done = subprocess.run(
        [sys._base_executable, "-S", script, "status"], cwd=fresh_clone, env=CLEAN, capture_output=True, text=True
    )
    assert done.returncode == 0 and "oracle" in done.stdout, done.stderr


def test_packages_of_other_tools_do_not_get_in_the_way(fresh_clone, tmp_path):
    (tmp_path / "yaml.py").write_text("raise ImportError('somebody else')")
    (tmp_path / "rich.py").write_text("raise ImportError('somebody else')")
    done = run(fresh_clone, "status", cwd=tmp_path, env={"PYTHONPATH": str(tmp_path), "PYTHONHOME": "/nonexistent"})
    assert done.returncode == 0, done.stderr


def test_an_interrupted_set_up_repairs_itself_and_two_calls_share_one(copy_clone, tmp_path):
    clone = with_few_packages(copy_clone(tmp_path / "clone"))
    interrupted = subprocess.Popen([clone / "lab"], env=CLEAN, stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (clone / ".venv" / "setup.log").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(interrupted.pid, signal.SIGKILL)
    interrupted.communicate()
    assert not (clone / ".venv" / ".stamp").exists()
    both = [subprocess.Popen([clone / "lab"], env=CLEAN, stdout=-1, stderr=-1, text=True) for _ in range(2)]
    said = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sorted("first use" in err for _, err in said) == [False, True]
    assert all("eval" in out for out, _ in said)


def python_for(user: str) -> bool:
    check = "import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info < (3, 14))"
    names = ("python3.13", "python3.12", "python3.11", "python3.10", "python3")
    return any(
        subprocess.run([f"/usr/bin/{name}", "-c", check], user=user, capture_output=True).returncode == 0
        for name in names
        if Path(f"/usr/bin/{name}").exists()
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try it as another user; this run is one already")
def test_works_for_a_user_who_is_not_root(copy_clone):
    if not python_for("nobody"):
        pytest.skip("no Python 3.10 to 3.13 with venv that every user can run")
    nobody = pwd.getpwnam("nobody")
    directory = Path(tempfile.mkdtemp(prefix="vlalab-user-"))
    try:
        clone = with_few_packages(copy_clone(directory / "clone"))
        for path in (directory, *directory.rglob("*")):
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
        variables = {"HOME": str(directory), "PATH": "/usr/local/bin:/usr/bin:/bin"}
        done = run(clone, user="nobody", group=nobody.pw_gid, extra_groups=[], env=variables, cwd="/")
        assert done.returncode == 0, done.stderr
        assert (clone / ".venv" / ".stamp").stat().st_uid == nobody.pw_uid
    finally:
        shutil.rmtree(directory)


def begin(clone: Path, until: str, env: dict[str, str]) -> str:
    """Returns what ./lab says up to the line with `until`, and stops it there: the rest takes its time."""
    process = subprocess.Popen(
        [clone / "lab"], env={**CLEAN, **env}, stdout=-3, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    said = []
    with process:
        for line in process.stderr:
            said.append(line)
            if until in line:
                break
        os.killpg(process.pid, signal.SIGKILL)
    return "".join(said)


def fake(directory: Path, name: str, body: str) -> Path:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_without_venv_the_exact_command_is_named(copy_clone, tmp_path):
    clone = copy_clone(tmp_path / "clone")
    tools = tmp_path / "tools"
    tools.mkdir()
    fake(tools, "id", "echo 1000")  # not root, so that nothing is installed
    fake(tools, "apt-get", "exit 1")
    python = fake(tools, "python", 'case "$2" in *ensurepip*) exit 1;; *print*) echo 3.11;; esac')
    done = run(clone, env={"VLALAB_PYTHON": str(python), "PATH": f"{tools}:{CLEAN['PATH']}"})
    assert done.returncode == 1
    assert "has no venv module. Run: sudo apt-get install -y python3.11-venv" in done.stderr
    assert not (clone / ".venv").exists()


def test_root_on_debian_installs_what_is_missing_and_continues(copy_clone, tmp_path):
    """apt-get here is a fake: it notes what it was asked for and makes the Python complete."""
    clone = copy_clone(tmp_path / "clone")
    tools = tmp_path / "tools"
    tools.mkdir()
    done, asked = tmp_path / "done", tmp_path / "asked"
    fake(tools, "id", "echo 0")
    fake(tools, "stat", "echo 0")  # its own clone
    fake(tools, "apt-get", f'echo "$@" >> {quote(str(asked))}; touch {quote(str(done))}')
    hide = f'case "$2" in *ensurepip*) [ -e {quote(str(done))} ] || exit 1;; esac'
    python = fake(tools, "python", f'{hide}\nexec {quote(sys.executable)} "$@"')
    said = begin(clone, "creating .venv", {"VLALAB_PYTHON": str(python), "PATH": f"{tools}:{CLEAN['PATH']}"})
    assert f"creating .venv with Python {sys.version_info[0]}" in said
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert asked.read_text() == f"install -y -q python{version}-venv\n"


def test_a_python_that_exists_and_fails_is_passed_over(copy_clone, tmp_path):
    clone = copy_clone(tmp_path / "clone")
    shim = fake(tmp_path, "python3.12", "echo 'version not set' >&2; exit 127")
    said = begin(clone, "creating .venv", {"PATH": f"{shim.parent}:{CLEAN['PATH']}"})
    assert "creating .venv with Python 3" in said
    assert str(shim) not in said


def test_the_shell_reads_it():
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run(["sh", "-n", str(root / "lab")]).returncode == 0
