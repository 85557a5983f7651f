"""A program ends with a sentence: real ones, a closed pipe, a full disk, somebody else's folder, Ctrl-C."""

import http.server
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from vla_common import entrypoint

PACKAGE = Path(entrypoint.__file__).parents[1]


def program(body: str, **variables: str) -> dict:
    """Returns the options of a program whose main is that body."""
    head = "import errno, os, sys, time\nfrom vla_common import entrypoint\n\ndef main():\n"
    text = head + textwrap.indent(body, "    ")
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), **variables}
    return {"args": [sys.executable, "-c", f"{text}\nentrypoint.run(main)"], "env": environment, "text": True}


def ended(body: str, **variables: str) -> tuple[int, str, str]:
    done = subprocess.run(**program(body, **variables), capture_output=True)
    return done.returncode, done.stdout, done.stderr


IN_UTF8 = "in utf-8; use UTF-8 for files and names\n"
IN_ASCII = "use UTF-8 for names, and ASCII for tokens, keys and addresses\n"


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ("return 0", 0, ""),
        ("return 3", 3, ""),
        ("sys.exit('own words')", 1, "own words\n"),
        ("raise ValueError('own words')", 1, "error: own words\n"),
        ("raise OSError(errno.EACCES, 'own words')", 1, "error: own words\n"),
        ("raise OSError('own words')", 1, "error: own words\n"),
        ("open('/nowhere/at/all')", 1, "error: /nowhere/at/all: No such file or directory\n"),
        ("raise KeyboardInterrupt", 130, "error: stopped; run the same command again to restart or resume\n"),
        (
            "raise ImportError('a module') from KeyboardInterrupt()",
            130,
            "error: stopped; run the same command again to restart or resume\n",
        ),
        ("raise MemoryError", 1, "error: out of memory; stop other programs on this machine\n"),
        (
            "'\\udce9'.encode()",
            1,
            f"error: character 1, U+DCE9 (not printable), cannot be written in utf-8; {IN_ASCII}",
        ),
        (
            "'secret-one\\u200bsecret-two'.encode('latin-1')",
            1,
            f"error: character 11, U+200B (ZERO WIDTH SPACE), cannot be written in latin-1; {IN_ASCII}",
        ),
        ("b'secret\\xb0\\xa1secret'.decode()", 1, f"error: byte 7 is not text {IN_UTF8}"),
    ],
)
def test_an_end_is_a_code_and_at_most_one_sentence(body, code, says):
    assert ended(body) == (code, "", says)


def test_a_mistake_of_its_own_keeps_its_traceback():
    code, _, said = ended("raise KeyError('x')")
    assert code == 1 and "Traceback" in said


@pytest.mark.parametrize(
    "body", ["print('x' * 100_000)", "print('x')", "print('x', flush=True)", "sys.exit(print('x'))"]
)
def test_output_that_nobody_reads_ends_it_silently(body):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(**program(body), stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (entrypoint.CLOSED_PIPE, "")


def test_a_pipe_of_its_own_that_breaks_is_reported():
    body = "r, w = os.pipe(); os.close(r); os.write(w, b'x')"
    assert ended(body) == (1, "", "error: Broken pipe\n")


def test_output_onto_a_full_disk_is_reported():
    with open("/dev/full", "w") as full:
        done = subprocess.run(**program("print('x')"), stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (
        1,
        "error: no space left: free some space and run the same command again\n",
    )


def test_ctrl_c_is_reported():
    process = subprocess.Popen(**program("print('x', flush=True); time.sleep(60)"), stdout=-1, stderr=-1)
    process.stdout.readline()
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert (process.returncode, said.count("\n"), "Traceback" in said) == (130, 1, False)


@pytest.mark.parametrize("locale", ["C", "POSIX", "xx_YY.nothing", "en_US.ISO-8859-1"])
def test_any_text_can_be_printed_in_any_locale(locale):
    body = r"print('\ud55c\uae00 \u2026 \udcff'); print('\ud55c\uae00 \u2026', file=sys.stderr)"
    options = {"LC_ALL": locale, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(**{**program(body, **options), "text": False}, capture_output=True)
    code, said, errors = done.returncode, done.stdout.decode(), done.stderr.decode()
    assert (code, said, errors) == (0, "한글 … \\udcff\n", "한글 …\n")


@pytest.mark.parametrize(
    "body",
    [
        "try:\n    open('/dev/full', 'w').write('x' * 100_000)\nexcept OSError:\n    raise RuntimeError('pos 64')",
        "raise Exception('I/O error: No space left on device (os error 28)')",
    ],
)
def test_what_a_library_makes_of_a_full_disk_is_reported_as_one(body):
    code, _, said = ended(body)
    assert code == 1 and said.startswith("error: no space left") and said.count("\n") == 1


def test_a_place_of_a_user_elses_is_reported_with_its_owner(tmp_path, monkeypatch):
    error = PermissionError(13, os.strerror(13), "/proc/1/mem/x")
    monkeypatch.setattr(entrypoint.os, "geteuid", lambda: 4321)
    assert entrypoint.describe_os_error(error).endswith(": /proc/1/mem belongs to user 0 (root), and you are user 4321")
    monkeypatch.setenv("VLALAB_VOLUME", "/proc/1")
    assert entrypoint.describe_os_error(error).endswith(
        "you are user 4321; set VLALAB_VOLUME to a directory you can use"
    )


EVIL = r"a\x1b[2J\x1b]0;owned\x07\r\x9b31m\u202e\u2028 b\tc"
SHOWN = r"a\x1b[2J\x1b]0;owned\x07\r\x9b31m\u202e\u2028 b" + "\tc"


@pytest.mark.parametrize(
    "body",
    [
        f"print('{EVIL}')",
        f"sys.stdout.write('{EVIL}')",
        f"sys.stdout.writelines(['{EVIL}'])",
        f"print('{EVIL}', file=sys.stderr)",
        f"import logging; logging.basicConfig(); logging.error('%s', '{EVIL}')",
        f"raise ValueError('{EVIL}')",
        f"raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), '{EVIL}')",
        f"raise TypeError('{EVIL}')",
        f"entrypoint.run(lambda: print('{EVIL}'))",
    ],
)
def test_text_from_outside_steers_no_terminal(body):
    _, out, errors = ended(body)
    assert SHOWN in out + errors and not entrypoint.CONTROL.search(out + errors)


def test_the_health_check_shows_an_answer_and_obeys_none():
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(503)
            self.end_headers()
            self.wfile.write(b"not ready \x1b[2J")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [sys.executable, "-m", "vla_common.healthcheck", f"http://127.0.0.1:{server.server_port}"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(PACKAGE)})
        server.shutdown()
    assert done.returncode == 1 and "not ready \\x1b[2J" in done.stderr and "\x1b" not in done.stderr
