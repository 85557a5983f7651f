"""Tokens lie in no file that others read, and on no command line: real services, known token, every file looked at."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_ports
from vlalab.description import compose, ports
from vlalab.environments import venvs
from vlalab.host import paths, processes, shared_code

token_file = shared_code.module("vla_contract.server.token_file")
TOKEN = "known-token-of-this-test-0123456789"
ROOT = os.geteuid() == 0
NAMES = ["oracle", "tensorboard", *([] if ROOT else ["ws_mdl"])]  # root must not serve notebooks


def is_set_up(name: str) -> bool:
    return venvs.get(compose.read(variables={})[name].environment_name).is_ready()


def holding(token: str, *places: Path) -> list[Path]:
    """Returns the files below those places that hold a token."""
    files = [path for place in places for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in files if token.encode() in path.read_bytes()]


def open_to_others(path: Path) -> bool:
    """Returns whether others can read a file: by its mode, and by those of the two folders around it."""
    facts = path.stat()
    closed = any(not directory.stat().st_mode & 0o077 for directory in list(path.parents)[:2])
    return facts.st_uid != os.geteuid() or (stat.S_IMODE(facts.st_mode) != 0o600 and not closed)


def command_lines() -> str:
    return "\n".join(
        " ".join(processes.command(int(one.name))) for one in Path("/proc").iterdir() if one.name.isdigit()
    )


@pytest.fixture
def lab(tmp_path):
    """`./lab WORDS` with a volume, a state folder, a folder for temporary files and ports of its own."""
    own = {name: str(tmp_path / name.lower()) for name in ("VLALAB_VOLUME", "VLALAB_STATE", "TMPDIR")}
    (tmp_path / "tmpdir").mkdir()
    own |= {ports.port_variable(name): str(port) for name, port in zip(NAMES, free_ports(len(NAMES)), strict=True)}

    def run(*words: str, **variables: str) -> str:
        done = subprocess.run(
            [str(paths.ROOT / "lab"), *words], env={**os.environ, **own, **variables}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    yield run
    subprocess.run([str(paths.ROOT / "lab"), "down"], env={**os.environ, **own}, capture_output=True)


def test_a_token_that_was_given_is_nowhere_to_be_read(lab, tmp_path):
    names = [name for name in NAMES if is_set_up(name)]
    if not names:
        pytest.skip("no environment of these services is set up: ./lab env libero ws_mdl")
    umask = os.umask(0)  # whatever a caller's is
    try:
        said = lab("up", *names, "--runtime", "local", VLALAB_TOKEN=TOKEN)
    finally:
        os.umask(umask)
    said += lab("status") + "".join(lab("logs", name) for name in names)
    said += lab("eval", "libero_goal", "--dry-run", "--runtime", "local", VLALAB_TOKEN=TOKEN)
    lab("restart", VLALAB_TOKEN=TOKEN)
    assert TOKEN not in said
    assert TOKEN not in command_lines()
    assert [path for path in holding(TOKEN, tmp_path) if open_to_others(path)] == []
    kept = [path for path in (tmp_path / "vlalab_state").rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert kept and {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}


@pytest.mark.skipif(ROOT, reason="root must not serve notebooks")
def test_the_log_of_the_notebooks_names_the_token_to_the_caller_alone(lab, tmp_path):
    if not is_set_up("ws_mdl"):
        pytest.skip("the environment ws_mdl is not set up: ./lab env ws_mdl")
    lab("up", "ws_mdl", "--runtime", "local")
    token = re.search(r"/lab\?token=(\S+)", lab("logs", "ws_mdl"))[1]
    assert token not in command_lines()
    found = holding(token, tmp_path)
    assert found and [path for path in found if open_to_others(path)] == []


def test_tokens_of_students_are_added_listed_and_removed(lab, tmp_path):
    (token,) = re.findall(r"vla_[\w-]{43}", lab("token", "add", "alice", "--rate", "5", VLALAB_TOKEN=TOKEN))
    assert re.search(r"(?m)^alice .* 5 +8$", lab("token", "list"))
    assert holding(token, tmp_path) == [] and (tmp_path / "vlalab_volume/tokens.json").stat().st_mode & 0o777 == 0o600
    lab("token", "remove", "alice")
    assert "alice" not in lab("token")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["add"], "NAME"),
        (["add", "a/b"], "'a/b'"),
        (["add", "alice", "--concurrency", "0"], "1 to 1000"),
        (["remove", "nobody"], "'nobody'"),
        (["list", "alice"], "'alice'"),
        (["add", "alice"], "VLALAB_TOKEN"),
    ],
)
def test_a_token_task_that_cannot_be_done_says_why(words, expected, tmp_path):
    env = {**os.environ, "VLALAB_VOLUME": str(tmp_path), "VLALAB_TOKEN": "" if expected == "VLALAB_TOKEN" else TOKEN}
    done = subprocess.run([paths.ROOT / "lab", "token", *words], env=env, capture_output=True, text=True)
    assert done.returncode == 1 and expected in done.stderr and "Traceback" not in done.stderr
    assert token_file.load(tmp_path / "tokens.json") == {}


def test_a_token_that_no_header_can_carry_is_named_and_not_shown():
    env = {**os.environ, "VLALAB_TOKEN": "secret-one\u200bsecret-two", "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    command = [sys.executable, "-m", "vlalab", "eval", "--join", "http://127.0.0.1:9", "--runtime", "local"]
    done = subprocess.run(command, env=env, cwd=paths.ROOT, capture_output=True, text=True)
    output = done.stdout + done.stderr
    assert done.returncode == 1 and "VLALAB_TOKEN has U+200B (ZERO WIDTH SPACE) as character 11 of 21" in output
    assert "secret-" not in output and "Traceback" not in output
