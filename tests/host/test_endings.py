"""Commands end in words: output that nobody reads, Ctrl-C in a set-up, locales and paths, unusable folders."""

import contextlib
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.host.conftest import with_few_packages
from tests.screen import Screen
from vlalab.description import environment_file, ports
from vlalab.host import owners
from vlalab.host.console import LabError
from vlalab.host.shared_code import entrypoint

CLEAN = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV", "VLALAB_PYTHON")}
NO_ENGINE = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}
WAIT_S = 120


def command(*words: str, **variables: str) -> dict:
    """Returns the options of a command of this lab, without its launcher."""
    options = {"stdin": subprocess.DEVNULL, "env": {**os.environ, **NO_ENGINE, **variables}, "text": True}
    return {"args": [sys.executable, "-X", "utf8", "-I", "-m", "vlalab", *words], **options}


PRINTING = [
    [], ["--list"], ["eval", "--help"], ["status"], ["down"], ["clean", "--dry-run"], ["lock", "--check"],
    ["up", "oracle", "--dry-run", "--runtime", "local"], ["eval", "libero_goal", "--dry-run", "--runtime", "local"],
]  # fmt: skip


@pytest.mark.parametrize("words", PRINTING, ids=" ".join)
def test_output_that_nobody_reads_ends_a_command_silently(words):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(**command(*words), stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.returncode in (0, entrypoint.CLOSED_PIPE)  # 0: it had nothing to say there
    assert [line for line in done.stderr.splitlines() if not line.startswith("lab: ")] == []


def test_output_onto_a_full_disk_is_reported():
    with open("/dev/full", "w") as full:
        done = subprocess.run(**command("--list"), stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr == "lab: no space left: free some space and run the same command again\n"


def until(there, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + WAIT_S
    while not there():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


def processes_in(directory: Path) -> list[str]:
    """Returns the command lines of what runs from a folder."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended since
            lines.append(path.read_bytes())
    return [line.decode(errors="replace") for line in lines if os.fsencode(directory) in line]


def have_ended(clone: Path, within_s: float = 30.0) -> bool:
    """Returns whether nothing runs from a clone; what was just told to end has some time for it."""
    deadline = time.monotonic() + within_s
    while processes_in(clone) and time.monotonic() < deadline:
        time.sleep(0.02)
    return processes_in(clone) == []


@pytest.mark.parametrize(
    ("step", "number"),
    [("bin", signal.SIGINT), ("lib/*/site-packages/pip", signal.SIGINT), ("lib/*/site-packages/pip-*", signal.SIGHUP)],
    ids=["venv", "pip on its way", "pip at work"],
)
def test_ctrl_c_in_the_first_set_up_is_reported_and_the_next_call_begins_again(copy_clone, tmp_path, step, number):
    """Typed into a terminal, it reaches all that runs there; venv and pip would show their tracebacks."""
    clone = copy_clone(tmp_path / "clone")
    mine, theirs = pty.openpty()
    process = subprocess.Popen(
        [clone / "lab"], env=CLEAN, stdin=theirs, stdout=-1, stderr=-1, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # which nohup, of the tests, has switched off
    )  # fmt: skip
    until(lambda: any(clone.glob(f".venv/{step}")), process)
    os.killpg(process.pid, number)
    out, said = (text.decode() for text in process.communicate(timeout=WAIT_S))
    os.close(mine)
    os.close(theirs)
    assert (process.returncode, out) == (130, "")
    assert said.splitlines()[-1] == "lab: setup interrupted; the next ./lab starts it again"
    others = [line for line in said.splitlines() if not line.startswith("lab: ")]
    assert others == [] or number == signal.SIGHUP  # of which sh itself says a word
    assert not (clone / ".venv" / ".stamp").exists()
    assert have_ended(clone)


def test_what_a_set_up_starts_while_it_is_interrupted_ends_too(copy_clone, tmp_path):
    """A venv that starts one process after the other, also between the count of what runs and its own end."""
    clone = copy_clone(tmp_path / "clone")
    busy = tmp_path / "python"
    starting = ': > "$3/empty"; mkdir "$3/bin"; for n in $(seq 100); do timeout 60 tail -f "$3/empty" & done; wait'
    busy.write_text(
        f'#!/bin/sh\nif [ "$2" = venv ]; then {starting}; else exec {shlex.quote(sys.executable)} "$@"; fi\n'
    )
    busy.chmod(0o755)
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([clone / "lab"], env={**CLEAN, "VLALAB_PYTHON": str(busy)}, **quiet)
    until((clone / ".venv/bin").exists, process)
    process.terminate()
    assert process.wait(WAIT_S) == 130
    assert have_ended(clone)


def test_ctrl_c_in_an_environments_set_up_is_reported_and_leaves_nothing_running(copy_clone, tmp_path):
    clone = copy_clone(tmp_path / "clone")
    options = command("env", "libero")
    options["env"] |= {"PYTHONPATH": str(clone), "UV_CACHE_DIR": str(tmp_path / "cache")}
    options["args"] = [sys.executable, "-m", "vlalab", "env", "libero"]
    process = subprocess.Popen(**options, cwd=clone, stdout=-1, stderr=-1)
    until((clone / "images/libero/.venv").exists, process)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)  # to it alone, as kill does
    out, said = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (entrypoint.INTERRUPTED, "")
    assert "Traceback" not in said and said.splitlines()[-1].startswith("lab: stopped; ")
    assert have_ended(clone)


def test_a_path_in_another_script_works_in_any_locale(copy_clone, tmp_path):
    clone = with_few_packages(copy_clone(tmp_path / "연구 실 é" / "vla $(x) 'lab'"))
    strict = {"PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii", "VLALAB_STATE": str(tmp_path / "상태")}
    for locale in ("xx_YY.nothing", "C"):  # the first one's is the set-up
        variables = {**CLEAN, **NO_ENGINE, **strict, "LC_ALL": locale}
        done = subprocess.run([clone / "lab", "status"], env=variables, capture_output=True, timeout=300)
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr.decode()
        assert f"volume {clone}/shared/volume" in done.stdout.decode()
        listed = subprocess.run([clone / ".venv/bin/invoke", "--list"], env=variables, capture_output=True)
        assert (listed.returncode, b"eval" in listed.stdout) == (0, True), listed.stderr.decode()
    hook = next((clone / ".venv").glob("lib/python3*/site-packages/vlalab.pth"))
    assert hook.read_bytes().isascii() and (clone / ".venv/bin/invoke").read_bytes().isascii()


def test_names_that_are_not_a_variables_are_reported_with_the_nearest_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(environment_file, "ROOT", tmp_path)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    names = ("VLALAB_TOKN", "VLALAB_BASE_UI", "VLALAB_ORACLE_PORT", "vlalab_bind", "VLALAB_ZZZZ", "HF_TOKEN")
    (tmp_path / ".env").write_text("".join(f"{name}=1\n" for name in names))
    environment_file.load()
    assert capsys.readouterr().err.splitlines() == [
        "lab: .env: unknown variable VLALAB_TOKN has no effect; did you mean VLALAB_TOKEN?",
        "lab: .env: unknown variable vlalab_bind has no effect; did you mean VLALAB_BIND?",
        "lab: .env: unknown variable VLALAB_ZZZZ has no effect; see .env.example",
    ]


def test_the_environment_file_is_read_as_utf8(copy_clone, tmp_path):
    clone = copy_clone(tmp_path / "clone")
    (clone / ".env").write_bytes("VLALAB_TOKN=12345678 # 한글\n".encode("euc-kr"))
    options = {
        "env": {**CLEAN, **NO_ENGINE, "PYTHONPATH": str(clone)},
        "cwd": clone,
        "capture_output": True,
        "text": True,
    }
    line = [sys.executable, "-m", "vlalab", "--list"]
    done = subprocess.run(line, **options)
    assert (done.returncode, done.stderr) == (
        1,
        f"lab: {clone}/.env is not UTF-8 text (line 1); save it as UTF-8\n",
    )
    (clone / ".env").write_text("VLALAB_TOKN=12345678 # 한글\n")
    assert "did you mean VLALAB_TOKEN?" in subprocess.run(line, **options).stderr


def test_a_home_that_cannot_be_used_is_passed_over(tmp_path):
    """/proc is a folder in which nobody, not even root, makes another."""
    variables = {"HOME": "/proc", "XDG_STATE_HOME": "/proc/self", "VLALAB_STATE": "", "TMPDIR": str(tmp_path)}
    for words in (["status"], ["down"], ["logs", "oracle"]):
        done = subprocess.run(**command(*words, **variables), capture_output=True)
        assert "Traceback" not in done.stderr and "/proc" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        (
            {"VLALAB_ORACLE_PORT": "99999"},
            "expected address:port:port with ports from 1 to 65535 (set by VLALAB_ORACLE_PORT",
        ),
        ({"VLALAB_ORACLE_PORT": "abc"}, "(set by VLALAB_ORACLE_PORT and VLALAB_BIND)"),
        ({"VLALAB_ORACLE_PORT": "0"}, "ports from 1 to 65535"),
        (
            {"VLALAB_BIND": "203.0.113.7", "VLALAB_TOKEN": "12345678"},
            "VLALAB_BIND=203.0.113.7 is not an address of this machine",
        ),
        (
            {"VLALAB_BIND": "x.invalid", "VLALAB_TOKEN": "12345678"},
            "VLALAB_BIND=x.invalid is not an address of this machine",
        ),
    ],
)
def test_places_that_cannot_be_are_reported(tmp_path, variables, says):
    options = command("up", "oracle", "--runtime", "local", VLALAB_VOLUME=str(tmp_path), **variables)
    done = subprocess.run(**options, capture_output=True)
    assert (done.returncode, done.stderr.count("Traceback")) == (1, 0) and says in done.stderr


def test_a_port_that_is_not_permitted_is_reported(monkeypatch):
    monkeypatch.setattr(ports.socket.socket, "bind", lambda *_: (_ for _ in ()).throw(PermissionError(13, "denied")))
    with pytest.raises(LabError, match="no permission for port 80: ports below 1024 require root"):
        next(ports._free_ports("127.0.0.1", 80, set()))
    assert next(ports._free_ports("127.0.0.1", 80, set(), by_engine=True)) == 80  # it may have the right


USING_THE_VOLUME = [
    ["eval", "libero_goal"], ["up", "oracle"], ["runs"], ["report", "a"], ["compare", "a", "b"],
    ["checkpoint", "openvla", "--tiny"], ["train", "transformer"],
]  # fmt: skip


def without_roots_powers(options: dict) -> dict:
    """Returns a command's options such that it may enter others' folders only as their permissions say."""
    powerless = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"] if os.geteuid() == 0 else []
    return {**options, "args": [*powerless, *options["args"]]}


@pytest.mark.parametrize("words", USING_THE_VOLUME, ids=lambda words: words[0])
@pytest.mark.parametrize("place", ["volume", "volume/deeper/still"])
def test_a_volume_that_is_closed_to_the_caller_is_reported_before_anything_is_made(tmp_path, monkeypatch, words, place):
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume").chmod(0)
    if os.geteuid() == 0:
        os.chown(tmp_path / "volume", 4001, 4001)
    told = {"VLALAB_VOLUME": str(tmp_path / place), "VLALAB_STATE": str(tmp_path / "state")}
    done = subprocess.run(**without_roots_powers(command(*words, "--runtime", "local", **told)), capture_output=True)
    (tmp_path / "volume").chmod(0o700)
    last = done.stderr[done.stderr.rindex("lab: ") :]
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert str(tmp_path / place) in last and "set VLALAB_VOLUME to a " in last
    assert "installing" not in done.stderr
    assert os.geteuid() != 0 or owners.user_name(4001) in last or "not writable" in last


def test_lines_for_a_person_are_plain_where_the_terminal_knows_no_codes():
    program = (
        "from vlalab.host.console import status\nwith status('fetching') as line: line.update('a'); line.update('b')"
    )
    for unusual in ({"TERM": "dumb"}, {"TERM": None}):
        with Screen([sys.executable, "-c", program], variables=unusual) as screen:
            assert screen.wait() == 0
            assert screen.lines[:2] == ["lab: fetching …", "lab: fetching: done in 0 s"]


def test_a_message_ends_its_lines_between_words_and_leaves_commands_whole():
    sentence = "a policy at http://127.0.0.1:8001 answers, but speaks another version of the contract; "
    command = "./lab eval libero_goal --policy http://127.0.0.1:8001 --trials 2 --workers 2 --video none"
    body = f"from vlalab.host.console import LabError, log_info\nlog_info({sentence * 2 + command!r})\n"
    body += "print('x' * 9 + ' y' * 50)\n"
    program = f"from vlalab.host.shared_code import entrypoint\ndef main():\n    exec({body!r})\nentrypoint.run(main)"
    with Screen([sys.executable, "-c", program], columns=80) as screen:
        assert screen.wait() == 0
    lines = screen.sent.decode().replace("\r\n", "\n").splitlines()
    assert lines[:-2] == [
        "lab: a policy at http://127.0.0.1:8001 answers, but speaks another version of",
        "the contract; a policy at http://127.0.0.1:8001 answers, but speaks another",
        "version of the contract;",
    ]
    assert lines[-2] == command, "a command is copied as it is"
    assert lines[-1] == "x" * 9 + " y" * 50, "standard output is the result"
