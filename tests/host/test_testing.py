"""`./lab test`: counts from pytest's reports, the sum, and the exit code."""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from tests import browser, ssh_server
from vlalab.engine import images
from vlalab.host import gl, paths, processes
from vlalab.host.console import LabError
from vlalab.testing import parts, run
from vlalab.testing.parts import PartResult, SuiteOptions, SuitePart

CHMOD = shutil.which("chmod")
TESTS = paths.ROOT / "tests"
FEW = """
import pytest
def test_good(): pass
def test_bad(): assert 0
@pytest.mark.skip(reason="no such machine")
def test_skipped(): pass
@pytest.fixture
def broken(): raise RuntimeError
def test_error(broken): pass
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A root with a tests/few folder."""
    (tmp_path / "tests" / "few").mkdir(parents=True)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    return tmp_path


def few(tree, text: str, *flags: str) -> PartResult:
    (tree / "tests" / "few" / "test_few.py").write_text(text)
    return parts.run_pytest("few", sys.executable, ["tests/few"], flags=flags)


def test_counts_come_from_the_report(tree):
    result = few(tree, FEW)
    assert (result.passed, result.failed, result.skipped) == (1, 2, 1)
    assert result.reasons == Counter(["no such machine"])


@pytest.mark.parametrize(("nightly", "counts"), [(True, (2, 0)), (False, (1, 1))])
def test_what_is_marked_nightly_runs_with_that_flag_alone(tree, monkeypatch, nightly, counts):
    for name in ("conftest.py", "ports.py"):
        shutil.copy(TESTS / name, tree / "tests")
    marked = "import pytest\n@pytest.mark.nightly\ndef test_long(): pass\ndef test_short(): pass\n"
    monkeypatch.setenv(parts.NIGHTLY, "")
    counted = []
    only(monkeypatch, SuitePart("host", lambda options, output: counted.append(few(tree, marked)) or counted))
    run.run(["host"], SuiteOptions(nightly=nightly))
    assert (counted[0].passed, counted[0].skipped) == counts
    assert ["--nightly" in reason for reason in counted[0].reasons] == [True] * counts[1]


@pytest.mark.parametrize("text", ["import nothing_of_that_name", "import os\ndef test_it(): os._exit(9)"])
def test_a_run_that_cannot_report_is_a_failure(tree, text):
    assert few(tree, text).failed == 1


def test_a_directory_without_tests_is_skipped_with_the_reason(tree):
    (result,) = parts.environment("none", "not outside", SuiteOptions(), None)
    assert (result.failed, result.skipped, *result.reasons) == (0, 1, "no tests in tests/none")


@pytest.mark.parametrize(
    ("counts", "line", "code"),
    [
        ([PartResult("a", passed=3), PartResult("b", passed=1, skipped=2)], "4 passed, 0 failed, 2 skipped", 0),
        ([PartResult("a", passed=3), PartResult("b", failed=1)], "3 passed, 1 failed, 0 skipped", 1),
        ([PartResult("a", skipped=5)], "0 passed, 0 failed, 5 skipped", 1),
        ([], "0 passed, 0 failed, 0 skipped", 1),
    ],
)
def test_one_line_sums_everything(counts, line, code, capsys):
    assert run.print_summary(counts) == code
    assert capsys.readouterr().out.splitlines()[-1] == line


# --- parts at the same time ----------------------------------------------------------------------------------


def only(monkeypatch, *some: SuitePart) -> None:
    """Let `./lab test` have these parts alone."""
    monkeypatch.setattr(parts, "all_parts", lambda options: [*some])
    monkeypatch.setattr(run, "NAMES", tuple(dict.fromkeys(part.name.split()[0] for part in some)))
    monkeypatch.setattr(run, "missing_programs", lambda: [])


def shell(name: str, script: str, stage: int = 0) -> SuitePart:
    """Return a part that runs a script."""

    def run_script(options: SuiteOptions, output) -> list[PartResult]:
        code = parts.execute(["sh", "-c", script], {}, output)
        return [PartResult(name, passed=int(code == 0), failed=int(code != 0))]

    return SuitePart(name, run_script, stage)


def counts(*some: SuitePart, most: int = 2, monkeypatch) -> list[tuple[str, int, int]]:
    monkeypatch.setattr(parts, "max_parallel_parts", lambda: most)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return [(part.name, part.passed, part.failed) for part in run.run_parts(some, SuiteOptions())]


def test_independent_parts_run_at_the_same_time(tmp_path, monkeypatch):
    meet = "touch {0}; for i in $(seq 600); do [ -e {1} ] && exit 0; sleep 0.1; done; exit 1"
    a, b = tmp_path / "a", tmp_path / "b"
    some = [shell("a", meet.format(a, b)), shell("b", meet.format(b, a))]
    assert counts(*some, monkeypatch=monkeypatch) == [("a", 1, 0), ("b", 1, 0)]


def test_a_later_stage_waits_for_the_earlier_one(tmp_path, monkeypatch):
    some = [shell("late", f"[ -e {tmp_path}/early ]", 1), shell("early", f"sleep 0.3; touch {tmp_path}/early")]
    assert counts(*some, monkeypatch=monkeypatch) == [("early", 1, 0), ("late", 1, 0)]


def test_a_part_that_cannot_run_is_a_failure_and_the_others_continue(monkeypatch, capsys):
    def broken(options: SuiteOptions, output) -> list[PartResult]:
        raise LabError("no Python 3.10")

    assert counts(SuitePart("a", broken), shell("b", "kill -9 $$"), shell("c", "true"), monkeypatch=monkeypatch) == [
        ("a", 0, 1), ("b", 0, 1), ("c", 1, 0),
    ]  # fmt: skip
    assert "no Python 3.10" in capsys.readouterr().err


def test_as_many_at_once_as_cores_and_memory_allow(monkeypatch):
    assert 1 <= parts.max_parallel_parts() <= len(os.sched_getaffinity(0)) + 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert parts.max_parallel_parts() == 1


SLEEPS = """
from vlalab.testing import parts, run
from vlalab.testing.parts import PartResult
def part(options, output):
    parts.execute(["sh", "-c", "echo $$ > $PIDS/$$; exec sleep 600"], {}, output)
    return [PartResult("a")]
run.run_parts([parts.SuitePart("a", part), parts.SuitePart("b", part)], parts.SuiteOptions())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_parts_started_ends_with_their_caller(number, tmp_path):
    (pids := tmp_path / "pids").mkdir()
    caller = subprocess.Popen(
        [sys.executable, "-c", SLEEPS], cwd=paths.ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path), "PIDS": str(pids)},  # one that is killed leaves its directory
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (started := list(pids.iterdir())):
        assert time.monotonic() < deadline and caller.poll() is None
        time.sleep(0.05)
    pid = int(started[0].name)
    caller.send_signal(number)
    caller.wait(60)
    while processes.stat_fields(pid)[:1] not in ([], ["Z"]):
        assert time.monotonic() < deadline, f"{pid} outlives its caller"
        time.sleep(0.05)


def test_a_variant_runs_a_few_tests_and_all_of_its_environments_at_night(monkeypatch):
    calls = []
    monkeypatch.setattr(parts.venvs, "ensure", parts.venvs.get)
    monkeypatch.setattr(parts, "run_pytest", lambda *words: calls.append(words) or PartResult(words[0], passed=1))
    for nightly in (False, True):
        parts.variant("openvla-cu130", SuiteOptions(nightly=nightly), None)
    (name, python, few, _, variables, *_), (_, _, every, *_) = calls
    assert name == "openvla-cu130" and "/openvla/cu130/.venv/" in python and variables["VLALAB_VARIANT"] == "cu130"
    assert "tests/openvla/test_parity.py" in few and len(few) > 1 and every == ["tests/openvla"]


def test_names_select_parts(monkeypatch, capsys):
    assert run.NAMES[:4] == ("lint", "docker", "contract", "host") and {*parts.ENVIRONMENTS} <= {*run.NAMES}
    assert {*run.NAMES} == {part.name.split()[0] for part in parts.all_parts(SuiteOptions())}
    assert set(paths.image_names()) == set(parts.ENVIRONMENTS) and set(paths.variant_names()) <= {*run.NAMES}
    with pytest.raises(LabError, match="did you mean 'host'"):
        run.run(["hots"], SuiteOptions())
    only(monkeypatch, shell("lint", "true"), shell("ui outside", "true"), shell("ui", "true", 1))
    for words, passed in ((["ui"], 2), (["lint"], 1), (["all"], 3), ([], 3)):
        run.run(words, SuiteOptions())
        assert capsys.readouterr().out.splitlines()[-1] == f"{passed} passed, 0 failed, 0 skipped"


@pytest.mark.parametrize("nightly", [False, True])
def test_only_what_part_docker_tests_waits_for_it_where_the_disk_has_room(nightly, monkeypatch):
    usage = shutil.disk_usage(paths.ROOT)
    late = []
    for free in (0, 1e12):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage._replace(free=free))
        late.append({part.name for part in parts.all_parts(SuiteOptions(nightly=nightly)) if part.stage == 1})
    without_room, with_room = late
    assert with_room == {*images.buildable()} - (set() if nightly else {*parts.NIGHTLY_IMAGES})
    assert with_room < without_room and {"bridge", "openvla-cu130"} <= without_room - with_room


def test_every_family_of_the_fault_injection_is_run():
    families = ast.literal_eval(re.search(r"(?m)^SHARES = (\{.*\})", (TESTS / "chaos/__main__.py").read_text())[1])
    source = (paths.ROOT / "vlalab/testing/parts.py").read_text()
    assert all(f'"{family}"' in source for family in families)
    names = [part.name for part in parts.all_parts(SuiteOptions(minutes=30)) if part.name.startswith("chaos")]
    assert names == ["chaos"]


# --- environments: image or local ----------------------------------------------------------------------------


@pytest.fixture
def engine(speaking, tmp_path, monkeypatch):
    """An engine with libero's image; `run` writes pytest's report into the folder mounted at /report."""
    lock = parts.venvs.get("libero").lock_hash
    record = {
        "Id": "sha256:1", "RepoTags": ["vla-lab/libero:dev"], "Size": 1, "Created": "2026-01-01T00:00:00Z",
        "Config": {"Labels": {"vla-lab.lock": lock, "org.opencontainers.image.revision": "abc"}},
    }  # fmt: skip
    report = '<testsuites><testsuite><testcase name="a"/><testcase name="b"><skipped message="no GPU"/></testcase>'
    report += "</testsuite></testsuites>"
    speaking(f"""case "$1" in
version) echo '{{"Server": {{"Version": "26.1"}}}}' ;;
info) echo '{{}}' ;;
image) echo '{json.dumps([record])}'; echo "No such image" >&2; exit 1 ;;
run) echo "$@" > "$STATE/run"
    for word in "$@"; do
        case "$word" in *:/report) echo '{report}' > "${{word%:/report}}/junit.xml" ;; esac
    done ;;
esac""")
    monkeypatch.setenv("STATE", str(tmp_path))
    monkeypatch.delenv("VLALAB_TAG", raising=False)
    return tmp_path


def test_the_tests_of_an_environment_run_inside_its_image(engine):
    (result,) = parts.environment("libero", "not outside", SuiteOptions(), None)
    assert (result.passed, result.failed, result.skipped, result.reasons) == (1, 0, 1, Counter(["no GPU"]))
    words = (engine / "run").read_text()
    assert "--read-only --network none --cap-drop ALL --security-opt no-new-privileges" in words
    assert f"{paths.ROOT}/tests:/opt/vla-lab/tests:ro" in words
    assert "vla-lab/libero:dev python -m pytest" in words and "-m not outside" in words
    assert words.strip().endswith("tests/libero")
    assert f"{paths.ROOT}/services:/opt/vla-lab/services:ro" in words, "the image is of another commit"
    assert "--user 0:" not in words


def test_without_an_image_the_local_environment_is_used_unless_docker_is_required(engine, monkeypatch):
    def run_pytest(name, python, tests, output, variables, flags):
        return PartResult(f"{name} {flags[1]}", passed=7)

    monkeypatch.setattr(parts, "run_pytest", run_pytest)
    monkeypatch.setattr(parts.venvs, "ensure", parts.venvs.get)
    monkeypatch.setattr(gl, "ensure", lambda: None)
    assert parts.environment("ui", "not outside", SuiteOptions(), None) == [PartResult("ui not outside", passed=7)]
    assert parts.environment("libero", "not outside", SuiteOptions(runtime="local"), None)[0].passed == 7
    with pytest.raises(LabError, match="./lab build ui"):
        parts.environment("ui", "not outside", SuiteOptions(runtime="docker"), None)


def test_what_ran_inside_images_is_counted_and_not_run_again(engine, monkeypatch, capsys):
    def docker_tests(options: SuiteOptions, output) -> list[PartResult]:
        record = engine / "record.jsonl"
        monkeypatch.setenv(parts.RECORD, str(record))
        parts.environment("libero", "not outside", options, output)
        tested = [PartResult(**json.loads(line)) for line in record.read_text().splitlines()]
        return [PartResult("docker", passed=2), *tested]

    twice = SuitePart("libero", lambda options, output: pytest.fail("it ran twice"), 1)
    only(monkeypatch, SuitePart("docker", docker_tests), shell("libero outside", "true"), twice)
    assert run.run(["libero", "docker"], SuiteOptions()) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "4 passed, 0 failed, 1 skipped"


# --- programs that the tests need -----------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """The programs of a Debian without a browser and sshd, of an ordinary user. apt-get makes a Chromium."""
    directory = tmp_path / "bin"
    directory.mkdir()
    make = f"echo \"$@\" >> {tmp_path}/calls; echo '#!/bin/sh' > {directory}/chromium; {CHMOD} 755 {directory}/chromium"
    for name, text in {"apt-get": make, "dpkg-query": "exit 1"}.items():
        (directory / name).write_text(f"#!/bin/sh\n{text}\n")
        (directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.setattr(ssh_server, "find", lambda: "/usr/sbin/sshd")
    (directory / "nginx").touch(mode=0o755)
    monkeypatch.setattr(run.os, "geteuid", lambda: 1000)

    def contract(options, output):
        return [PartResult("contract", passed=1 + bool(browser.find()), reasons=Counter(["no browser"]))]

    part = SuitePart("contract", contract)
    monkeypatch.setattr(parts, "all_parts", lambda options: [part])
    return directory


def test_root_on_debian_installs_the_browser_before_the_tests(bare, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(run.os, "geteuid", lambda: 0)
    assert run.run(["contract"], SuiteOptions()) == 0
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call.endswith("install -y -q --no-install-recommends chromium"), call
    assert capfd.readouterr().out.splitlines()[-1] == "2 passed, 0 failed, 0 skipped"


def test_others_get_the_command_that_installs_them(bare, tmp_path, capsys):
    assert run.run(["contract"], SuiteOptions()) == 0
    assert ": sudo apt-get install -y chromium\n" in capsys.readouterr().out and not (tmp_path / "calls").exists()


# --- headless rendering -------------------------------------------------------------------------------------


@pytest.fixture
def no_egl(tmp_path, monkeypatch):
    """A Debian whose EGL has no device until apt-get was called."""
    called = tmp_path / "called"
    (tmp_path / "apt-get").write_text(f"#!/bin/sh\necho $@ >> {called}\n")
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(gl.ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(gl, "egl_devices", lambda: int(called.exists()))
    return called


def test_missing_libraries_are_reported_with_the_exact_command(no_egl, monkeypatch):
    monkeypatch.setattr(gl.os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match=r"has no driver .*Run: sudo apt-get install -y libegl1 libegl-mesa0"):
        gl.ensure()
    assert not no_egl.exists()


def test_root_on_debian_installs_and_looks_again(no_egl, monkeypatch):
    monkeypatch.setattr(gl.os, "geteuid", lambda: 0)
    gl.ensure()
    assert "install -y -q --no-install-recommends libegl1" in no_egl.read_text() and gl.missing() is None


def test_asking_egl_for_devices_never_raises():
    assert gl.egl_devices() >= 0
