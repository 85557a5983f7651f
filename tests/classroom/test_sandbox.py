"""The local runtime's sandbox: what a student reaches, and what a student cannot do to others."""

import json
import os
import subprocess
import sys
import time

import pytest

from tests.classroom.room import ROOT, sandboxed, spec_of

PYTHON = "/usr/bin/python3"
SECRET = "the victim's secret"


@pytest.fixture(scope="module")
def students(classroom):
    """Two students with mounted homes, as specifications of the sandbox by name."""
    (classroom.volume / "assets").mkdir()
    (classroom.volume / "assets" / "shared.txt").write_text("shared")
    (classroom.volume / "runs").mkdir()
    (classroom.volume / "runs" / "secret").write_text(SECRET)
    (classroom.volume / "tokens.json").write_text(SECRET)
    classroom.admin("add", "victim", "attacker")
    classroom.python("from hub import limits, store\nfor a in store.accounts().values(): limits.prepare_home(a, 0.1)")
    return {name: spec_of(classroom, {**entry, "name": name}) for name, entry in classroom.accounts().items()}


@pytest.fixture
def victim(students):
    """A running process of a student, with secrets in its home, its variables, /tmp and shared memory."""
    text = (
        f"import os, time\nfor p in ('secret', '/tmp/victim', '/dev/shm/victim'): open(p, 'w').write({SECRET!r})\n"
        "open('ready', 'w').close()\ntime.sleep(600)"
    )
    spec = students["victim"]
    process = subprocess.Popen(sandboxed(spec, PYTHON, "-c", text), env={**os.environ, "SECRET": SECRET})
    ready = os.path.join(spec["home"], "ready")
    while not os.path.exists(ready):
        assert process.poll() is None
        time.sleep(0.05)
    yield process
    process.kill()
    process.wait()
    os.remove(ready)


def run(spec, text, *arguments, timeout=120):
    """Return the result of Python code as a student; its output is in the student's log."""
    done = subprocess.run(sandboxed(spec, PYTHON, "-c", text, *arguments), timeout=timeout)
    with open(os.path.join(spec["home"], ".notebook.log")) as log:
        return done.returncode, log.read()


def test_a_student_works_in_a_home_of_their_own(students):
    text = (
        "import os, json; open('mine', 'w').write('x'); print(json.dumps([os.getcwd(), os.getuid(), os.getgroups(), "
        "os.stat('.').st_uid, open('assets/shared.txt').read(), sorted(os.listdir('/home'))]))"
    )
    code, output = run(students["attacker"], text)
    uid = students["attacker"]["uid"]
    assert (code, json.loads(output)) == (0, ["/home/attacker", uid, [], uid, "shared", ["attacker"]])


def test_no_attack_reaches_another_student_or_the_host(students, classroom, victim):
    spec = students["victim"]
    target = {
        "pid": victim.pid, "uid": spec["uid"], "name": "victim", "home": spec["home"], "secret": SECRET, "gpu": "",
        "class": str(classroom.path), "volume": str(classroom.volume), "root": str(ROOT),
        "code": spec["code"],
    }  # fmt: skip
    attacks = (ROOT / "tests/classroom/attacks.py").read_text()
    code, output = run(students["attacker"], attacks, json.dumps(target))
    result = json.loads(output.splitlines()[-1])
    assert code == 0 and result["attempts"] >= 40 and result["succeeded"] == {}, output
    assert victim.poll() is None
    with open(os.path.join(spec["home"], "secret")) as file:
        assert file.read() == SECRET
    assert (classroom.volume / "assets" / "shared.txt").read_text() == "shared"


def test_the_same_attacks_succeed_without_the_sandbox(students, classroom, victim, tmp_path):
    """As root of the host: an attempt that could never succeed would show nothing."""
    spec = students["victim"]
    target = {
        "pid": victim.pid, "uid": spec["uid"], "name": "victim", "home": spec["home"], "secret": SECRET, "gpu": "",
        "class": str(classroom.path), "volume": str(classroom.volume), "root": str(ROOT),
        "code": spec["code"],
    }  # fmt: skip
    source = (ROOT / "tests/classroom/attacks.py").read_text().partition("\nsucceeded = ")[0]
    names = [
        "read a file of the victim's home", "list all homes", "read through a link", "read accounts",
        "read the tokens of the policy", "read the victim's variables", "read through the victim's directory",
        "see processes of others", "read the file system of the victim's home", "read the host's passwords",
        "slow the victim down",
    ]  # fmt: skip
    end = f"\nos.chdir({str(tmp_path)!r})\nprint(json.dumps([n for n in {names!r} if not ATTEMPTS[n]()]))"
    done = subprocess.run([sys.executable, "-c", source + end, json.dumps(target)], capture_output=True, text=True)
    assert json.loads(done.stdout or "null") == [], done.stderr


def test_a_full_disk_is_the_students_own(students):
    text = "open('.fill', 'wb').write(bytes(10**6)); f = open('big', 'wb')\nwhile True: f.write(bytes(10**6))"
    free = os.statvfs(students["attacker"]["home"] + "/..")
    code, output = run(students["attacker"], text)
    after = os.statvfs(students["attacker"]["home"] + "/..")
    assert code != 0 and "No space left" in output
    assert (free.f_bavail - after.f_bavail) * free.f_frsize < 150e6
    code, output = run(students["victim"], "open('still', 'wb').write(bytes(10**7)); print('written')")
    assert (code, output) == (0, "written\n")
    os.remove(os.path.join(students["attacker"]["home"], "big"))


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_so_is_full_temporary_memory(students, place):
    code, output = run(students["attacker"], f"f = open('{place}/big', 'wb')\nwhile True: f.write(bytes(10**6))")
    assert code != 0 and "No space left" in output
    assert not os.path.exists(f"{place}/big")


def test_forks_without_end_leave_others_alone(students, victim):
    text = (
        "import os, time\nn = 0\ntry:\n while True:\n  if os.fork() == 0: time.sleep(5); os._exit(0)\n  n += 1\n"
        "except BlockingIOError: print(n)"
    )
    code, output = run(students["attacker"], text)
    assert code == 0 and int(output) < students["attacker"]["processes"]
    assert run(students["victim"], "import subprocess; subprocess.run(['true'], check=True); print('ok')") == (
        0,
        "ok\n",
    )


def test_memory_beyond_the_limit_ends_the_students_process_only(students, victim):
    code, _ = run(students["attacker"], "b = [bytearray(10**7) for _ in range(100)]")
    assert code == -9 and victim.poll() is None
    assert run(students["attacker"], "b = bytearray(10**8); print('ok')") == (0, "ok\n")


def test_what_a_student_detaches_ends_with_the_server(students, classroom):
    spec = students["attacker"]

    def kill():
        classroom.python(f"from hub import limits\nlimits.kill({spec['id']!r})")
        end = time.monotonic() + 60  # until the parent of orphans, process 1, has seen them
        while processes_of(spec["uid"]):
            assert time.monotonic() < end
            time.sleep(0.1)

    kill()  # what the tests above left
    assert run(spec, "import os, time\nif os.fork() == 0:\n os.setsid(); time.sleep(600)\nprint('left')") == (
        0,
        "left\n",
    )
    assert processes_of(spec["uid"])
    kill()


def processes_of(uid):
    return [pid for pid in os.listdir("/proc") if pid.isdecimal() and owner(pid) == uid]


def owner(pid):
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def test_the_hub_sees_who_listens_on_a_port(classroom):
    """A student could take the port before the other's server listens, and answer in its name."""
    text = (
        "import socket, os\nfrom hub.spawners import listener\nos.setegid(1234)\nos.seteuid(1234)\n"
        "s = socket.create_server(('127.0.0.1', 0))\nprint(listener(s.getsockname()[1]), listener(1))"
    )
    assert classroom.python(text) == "1234 None\n"


def test_a_link_in_the_place_of_a_shared_part_is_not_followed(students):
    spec = dict(students["attacker"], shared={**students["attacker"]["shared"], "elsewhere": "/etc"})
    os.symlink("/etc", os.path.join(spec["home"], "elsewhere"))
    code, output = run(spec, "import os; print(os.path.islink('elsewhere'), os.access('/etc', os.W_OK))")
    assert (code, output) == (0, "True False\n")
