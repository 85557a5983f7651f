"""Parts of the tests side by side: who waits for whom, what is shown, and what a part that dies counts."""

import ast
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from vlalab.host import memory
from vlalab.host.paths import ROOT
from vlalab.testing import plan, schedule, sidebyside
from vlalab.testing.results import Result
from vlalab.testing.sidebyside import Job


def meeting(folder, mine: str, other: str):
    """Returns a part that ends when the other one runs too."""

    def run(done) -> list[Result]:
        (folder / mine).touch()
        deadline = time.monotonic() + 60
        while not (folder / other).exists():
            assert time.monotonic() < deadline, f"{other} does not run beside {mine}"
            time.sleep(0.02)
        print(f"{mine} met {other}")
        return [Result(mine, passed=1)]

    return run


def test_independent_parts_run_at_the_same_time(tmp_path):
    jobs = [Job("a", meeting(tmp_path, "a", "b")), Job("b", meeting(tmp_path, "b", "a"))]
    assert [result.passed for result in sidebyside.run(jobs, 2)] == [1, 1]


def telling_threads(done) -> list[Result]:
    """A part that counts the threads its processes are to compute with."""
    said = subprocess.run(["sh", "-c", "echo $OMP_NUM_THREADS"], capture_output=True, text=True, check=True).stdout
    return [Result("threads", passed=int(said))]


@pytest.mark.parametrize("given", [None, "7"])
def test_parts_side_by_side_share_the_cores_unless_told_otherwise(given, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    results = sidebyside.run([Job("a", telling_threads), Job("b", telling_threads)], 3)
    assert [result.passed for result in results] == [int(given or 2)] * 2
    assert (sidebyside.threads(1), sidebyside.threads(99)) == (8, 1)


def alternating(name: str):
    """Returns a part that prints ten lines, by itself and by a process that it starts, with pauses in between."""

    def run(done) -> list[Result]:
        for number in range(5):
            print(f"{name} {2 * number}")
            subprocess.run(["sh", "-c", f"echo {name} {2 * number + 1} >&2"], check=True)
            time.sleep(0.05)
        return [Result(name, passed=1)]

    return run


@pytest.mark.parametrize("most", [1, 2, 3])
def test_what_parts_print_stays_whole_and_in_their_order(capsys, most):
    sidebyside.run([Job(name, alternating(name)) for name in ("one", "two", "three")], most)
    expected = [f"{name} {number}" for name in ("one", "two", "three") for number in range(10)]
    assert capsys.readouterr().out.splitlines() == expected


def test_a_part_that_fails_is_shown_whole_and_the_others_go_on(capsys):
    def broken(done) -> list[Result]:
        print("the last words")
        raise RuntimeError("broken in the middle")

    def killed(done) -> list[Result]:
        os.kill(os.getpid(), signal.SIGKILL)
        return []

    jobs = [Job("a", alternating("a")), Job("b", broken), Job("c", killed), Job("d", alternating("d"))]
    results = sidebyside.run(jobs, 2)
    assert [(result.name, result.passed, result.failed) for result in results] == [
        ("a", 1, 0), ("b", 0, 1), ("c", 0, 1), ("d", 1, 0),
    ]  # fmt: skip
    said = capsys.readouterr().out
    assert "the last words" in said and "RuntimeError: broken in the middle" in said


def test_a_part_knows_what_those_it_waits_for_came_to():
    jobs = [
        Job("late", lambda done: [Result("late", passed=sum(result.passed for result in done))], {"first", "second"}),
        Job("first", lambda done: [Result("first", passed=2)]),
        Job("second", lambda done: [Result("second", passed=3), Result("late", passed=5)]),
    ]
    assert [(result.name, result.passed) for result in sidebyside.run(jobs, 3)] == [
        ("late", 10), ("first", 2), ("second", 3), ("late", 5),
    ]  # fmt: skip


@pytest.mark.parametrize("most", [1, 2])
def test_no_more_run_at_a_time_than_may(tmp_path, most):
    def counted(name: str):
        def run(done) -> list[Result]:
            (tmp_path / name).touch()
            time.sleep(0.1)
            found = len(list(tmp_path.iterdir()))
            (tmp_path / name).unlink()
            return [Result(name, passed=found)]

        return run

    results = sidebyside.run([Job(name, counted(name)) for name in "abcde"], most)
    assert max(result.passed for result in results) <= most


def test_a_part_that_mostly_waits_takes_no_turn_where_two_may_run(tmp_path):
    together = [Job("a", meeting(tmp_path, "a", "b")), Job("b", meeting(tmp_path, "b", "a"))]
    waits = Job("waits", meeting(tmp_path, "waits", "b"), is_waiting=True)
    assert [result.passed for result in sidebyside.run([waits, *together], 2)] == [1, 1, 1]


def test_where_one_runs_at_a_time_a_part_that_mostly_waits_has_its_turn_too(tmp_path):
    def alone(done) -> list[Result]:
        (tmp_path / "runs").touch(exist_ok=False)
        time.sleep(0.2)
        (tmp_path / "runs").unlink()
        return [Result("alone", passed=1)]

    jobs = [Job("waits", alone, is_waiting=True), Job("computes", alone)]
    assert [result.failed for result in sidebyside.run(jobs, 1)] == [0, 0]


def test_environments_wait_for_the_engines_tests_and_what_no_image_runs_for_nothing():
    after = {job.name: job.after for job in schedule.jobs(schedule.choose([]), plan.How())}
    assert {name: after[name] for name in plan.ENVIRONMENTS} == {name: {"docker"} for name in plan.ENVIRONMENTS}
    assert not after["docker"] and not after["host"] and not after["contract"]
    outside = {name: after[name] for name in after if name.endswith(" outside")}
    assert {"libero outside", "ui outside", "ws_mdl outside"} <= {*outside} and not any(outside.values())
    waiting = [job.name for job in schedule.jobs(schedule.choose([]), plan.How()) if job.is_waiting]
    assert waiting == ["contract", "chaos beside"]
    assert after["terminal"] == {*outside}  # it uses the environments that those make
    assert [job.after for job in schedule.jobs(["libero", "ui"], plan.How(runtime="docker"))] == [set(), set()]


def test_of_the_attack_what_is_timed_waits_for_all():
    def attacks(*chosen: str, **how) -> list[tuple[str, set[str]]]:
        found = schedule.jobs(chosen, plan.How(**how))
        return [(job.name, job.after) for job in found if job.name.startswith("chaos")]

    assert attacks("host", "chaos") == [
        ("chaos beside", set()),
        ("chaos pages", set()),
        ("chaos", {"host", "chaos beside", "chaos pages"}),
    ]
    assert attacks("ui", "chaos")[1] == ("chaos pages", {"ui outside"})
    assert [job.name for job in schedule.jobs(["host", "chaos"], plan.How()) if job.is_waiting] == ["chaos beside"]
    assert attacks("chaos") == [("chaos", set())]
    assert attacks("host", "chaos", minutes=30) == [("chaos", {"host"})]
    assert attacks("host") == []
    families = re.search(r"(?m)^SHARES = (\{.*\})", (ROOT / "tests/chaos/__main__.py").read_text())[1]
    assert {*schedule.NOTICED, *schedule.UNTIMED, *schedule.TIMED} == {*ast.literal_eval(families)}


WAITS = """
import subprocess, sys, time
from vlalab.host.processes import die_with_parent
from vlalab.testing import sidebyside
def run(done):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], preexec_fn=die_with_parent())
    print("up"); time.sleep(600)
sidebyside.run([sidebyside.Job("a", run), sidebyside.Job("b", run)], 2)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_parts_end_with_their_caller(number):
    command = [sys.executable, "-c", WAITS]
    caller = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert caller.stdout.readline() == "up\n"
    children = [pid for pid in os.listdir("/proc") if pid.isdigit() and fields(pid)[1:2] == [str(caller.pid)]]
    assert len(children) == 2
    caller.send_signal(number)
    caller.wait(60)
    deadline = time.monotonic() + 60
    while any(fields(pid)[:1] not in ([], ["Z"]) for pid in children):
        assert time.monotonic() < deadline, f"{children} outlive their caller"
        time.sleep(0.05)


def fields(pid: str) -> list[str]:
    """Returns what the kernel says of a process behind its name: state, parent …; nothing of one that is gone."""
    return memory.stat_fields(int(pid))


def test_as_many_as_cores_and_memory_allow(monkeypatch):
    assert 1 <= sidebyside.at_once() <= len(os.sched_getaffinity(0))
    monkeypatch.setattr(sidebyside, "MEMORY_GB", 1e6)
    assert sidebyside.at_once() == 1
