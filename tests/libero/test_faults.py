"""Episodes over real HTTP while something is killed: every episode once, no fault counted against the policy.

With LIBERO where scenes, states or films have to come out the same in another process; else with a simulator that
costs next to nothing, since evaluator, workers and policy are the same.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.libero.harness import ENVIRONMENT, ROOT, Evaluation, LightEvaluation, PolicyService, results, wait_for
from vla_evaluation.store.runstore import RunStore
from vla_evaluation.workers.heartbeat import Phase, WorkerHeartbeat
from vla_evaluation.workers.supervisor import Child
from vla_evaluation.workers.worker import FATAL

TASK, EPISODES, STEPS, LIBERO_STEPS = 0, 3, 40, 20
PLAN = [(TASK, episode) for episode in range(EPISODES)]


@pytest.fixture(scope="module")
def flags():
    return (
        "--tasks", str(TASK), "--trials", str(EPISODES), "--max-steps", str(STEPS),
        "--video", "none", "--workers", "1", "--lease-s", "6", "--act-timeout-s", "10",
    )  # fmt: skip


@pytest.fixture(scope="module")
def of_libero(flags, libero_assets):
    """The same with LIBERO, in fewer steps."""
    return (*flags, "--assets", str(libero_assets), "--max-steps", str(LIBERO_STEPS))


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    options = ("--chunk", "1", "--delay-ms", "30")
    with PolicyService(tmp_path_factory.mktemp("policy") / "log.txt", *options) as service:
        yield service


def calm_run(kind: type[Evaluation], policy, flags, root):
    """Return the folder of a run that nothing happened to."""
    with kind(root, "calm", "--policy-url", policy.url, *flags) as run:
        output = run.end()
        assert f"success rate 0.0 % (0/{EPISODES})" in output and "report: " in output
        return run.directory


@pytest.fixture(scope="module")
def undisturbed(policy, flags, tmp_path_factory):
    """What the episodes give when nothing happens."""
    return results(calm_run(LightEvaluation, policy, flags, tmp_path_factory.mktemp("calm")))


@pytest.fixture(scope="module")
def calm_libero(policy, of_libero, tmp_path_factory):
    """The folder of such a run with LIBERO, with every video."""
    return calm_run(Evaluation, policy, (*of_libero, "--video", "all"), tmp_path_factory.mktemp("calm"))


def check(run: Evaluation, undisturbed: dict) -> list:
    """Every planned episode is there once, as if nothing had happened; returns the faults that were redone."""
    assert sorted(results(run.directory)) == PLAN
    assert results(run.directory) == undisturbed
    assert run.workers() == {}
    with RunStore(run.directory / "run.sqlite", readonly=True) as store:
        assert sum(row["done"] for row in store.counts().values()) == len(PLAN)
        return store.faults()


def test_a_worker_that_hangs_is_replaced_and_its_late_report_is_ignored(policy, flags, undisturbed, tmp_path):
    with policy.holding(1), LightEvaluation(tmp_path, "run", "--policy-url", policy.url, *flags) as run:
        name = run.wait_mid_episode()
        os.kill(run.workers()[name], signal.SIGSTOP)
        policy.release()
        run.end()
        [fault] = check(run, undisturbed)
        assert fault.status == "lost" and "heartbeat" in fault.error


FAULTS = {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "libero" / "faults"), ENVIRONMENT["PYTHONPATH"]])}


def test_a_worker_that_hangs_while_it_starts_is_replaced(policy, flags, undisturbed, tmp_path):
    """No lease is held then; what ended it is said as it was, and not taken for a lack of memory."""
    command, late = ("--policy-url", policy.url, *flags, "--start-timeout-s", "20"), {"TEST_HANG_START": "5"}
    with LightEvaluation(tmp_path, "run", *command, **FAULTS, **late) as run:
        [worker] = run.wait_for(run.workers, "a worker").values()
        os.kill(worker, signal.SIGSTOP)
        output = run.end()
        assert check(run, undisturbed) == []
    assert "worker-0 did not finish starting within 20 s and was killed; starting another" in output
    assert "memory" not in output


def test_a_main_thread_that_hangs_is_replaced_whatever_it_was_doing(policy, flags, undisturbed, tmp_path):
    phases = [phase for phase in Phase if phase not in (Phase.STARTING, Phase.WAITING)]
    hang = {"TEST_HANG_IN": ",".join(phase.name for phase in phases), "TEST_HANG_DIR": str(tmp_path / "hung")}
    (tmp_path / "hung").mkdir()
    more = ("--workers", "2", "--video", "all", "--retries", "9")
    with LightEvaluation(tmp_path / "runs", "run", "--policy-url", policy.url, *flags, *more, **FAULTS, **hang) as run:
        output = run.end()
        faults = check(run, undisturbed)
    assert sorted(path.name for path in (tmp_path / "hung").iterdir()) == sorted(phase.name for phase in phases)
    for phase in phases:
        assert f"{phase.value} within 2 s and was killed" in output, phase
    assert {fault.status for fault in faults} == {"lost"} and "memory" not in output


def test_workers_that_never_start_end_the_run_with_a_message(policy, flags, tmp_path):
    hang = {"TEST_HANG_START": "600"}
    command = ("--policy-url", policy.url, *flags, "--start-timeout-s", "1")
    with LightEvaluation(tmp_path, "run", *command, **FAULTS, **hang) as run:
        output = run.end(code=1)
        assert "workers keep failing (4 in a row); the last: worker-0 did not finish starting within 1 s" in output
        assert run.workers() == {} and "--resume run" in output


def test_a_clock_that_jumps_leaves_a_healthy_run_alone(policy, flags, undisturbed, tmp_path):
    ahead = tmp_path / "ahead"
    ahead.write_text("0")
    command, clock = ("--policy-url", policy.url, *flags), {"TEST_CLOCK_FILE": str(ahead)}
    with policy.holding(0), LightEvaluation(tmp_path / "runs", "run", *command, **FAULTS, **clock) as run:
        run.wait_mid_episode(done=0)
        policy.release()
        for jump in (40, -40, 3600, -3600, 40):
            ahead.write_text(str(jump))
            time.sleep(0.7)
        output = run.end()
        assert check(run, undisturbed) == [], output
    summary = json.loads((run.directory / "summary.json").read_text())
    assert 0 < summary["seconds"] < 600
    for row in run.peek("SELECT started, ended FROM sessions"):
        assert row[1] > row[0]


@pytest.mark.parametrize("with_workers", [False, True], ids=["the evaluator", "all of it"])
def test_paused_run_continues(with_workers, policy, flags, undisturbed, tmp_path):
    """As by `docker pause`: who could not look must not take for dead who could not move."""
    with policy.holding(0), LightEvaluation(tmp_path, "run", "--policy-url", policy.url, *flags) as run:
        run.wait_mid_episode(done=0)
        policy.release()
        paused = [run.process.pid, *(run.workers().values() if with_workers else ())]
        for number, pause_s in ((signal.SIGSTOP, 8.0), (signal.SIGCONT, 0.0)):
            for process in paused:
                os.kill(process, number)
            time.sleep(pause_s)
        output = run.end()
        assert check(run, undisturbed) == [], output


def test_policy_killed_and_restarted_during_a_run(flags, undisturbed, tmp_path):
    with (
        PolicyService(tmp_path / "policy.txt", "--chunk", "1", "--delay-ms", "30") as service,
        service.holding(1),
        LightEvaluation(tmp_path, "run", "--policy-url", service.url, "--act-timeout-s", "1", *flags[:-2]) as run,
    ):
        run.wait_mid_episode()
        service.kill()
        service.release()
        run.wait_for(lambda: run.peek("SELECT 1 FROM episodes WHERE status = 'error'"), "the worker's notice")
        service.start()
        run.end()
        [fault] = check(run, undisturbed)
        assert fault.status == "error", "one outage costs one attempt"


def test_ctrl_c_saves_and_prints_the_resume_command(policy, flags, undisturbed, tmp_path):
    with policy.holding(1), LightEvaluation(tmp_path, "run", "--policy-url", policy.url, *flags) as run:
        run.wait_mid_episode()
        run.process.send_signal(signal.SIGINT)
        output = run.end(code=130)
        assert run.workers() == {}
        assert "resume with\n" in output
        [command] = [line for line in output.splitlines() if "--resume run" in line]
        assert command.split()[:4] == ["python", "-m", "tests.libero.light", "libero_goal"]
    assert 1 <= len(results(run.directory)) < len(PLAN)
    with LightEvaluation(tmp_path, "run", "--policy-url", policy.url, *flags, "--resume") as run:
        run.end()
        assert check(run, undisturbed) == [], "a clean stop is no fault"


def test_nan_action_ends_the_run_with_a_message(flags, tmp_path):
    with PolicyService(tmp_path / "policy.txt", "--chunk", "1", "--nan-at", "3") as service:
        with LightEvaluation(tmp_path, "run", "--policy-url", service.url, *flags) as run:
            output = run.end(code=1)
        assert "could not be run in 3 tries each" in output and "nan" in output, output
        assert results(run.directory) == {}, "such an episode is no failure of the policy at the task"


def test_kills_do_not_change_episodes_and_videos(policy, of_libero, calm_libero, tmp_path):
    """A worker that hangs in the first film, its successor by kill -9 in mid-episode, then the evaluator likewise; the
    same command goes on, and draws what was cut off.
    """
    command = ("--policy-url", policy.url, *of_libero, "--video", "all")
    cut = {"TEST_HANG_IN": "VIDEO", "TEST_HANG_DIR": str(tmp_path)}
    with policy.holding(1), Evaluation(tmp_path / "runs", "run", *command, **FAULTS, **cut) as run:
        name = run.wait_mid_episode()
        os.kill(run.workers()[name], signal.SIGKILL)
        policy.hold(2)
        run.wait_mid_episode(done=2)
        assert run.workers()
        run.kill()
        wait_for(lambda: not run.workers(), "the workers' end", timeout_s=10)
    assert "did not render the next frame of a video within 2 s and was killed" in run.output
    assert "was killed by SIGKILL" in run.output
    assert sorted(results(run.directory)) == PLAN[:2] and not (run.directory / "videos" / "00-00.mp4").exists()
    with Evaluation(tmp_path / "runs", "run", *command) as run:
        output = run.end()
        assert "(resumed)" in output and "1 video of earlier invocations to render" in output
        faults = check(run, results(calm_libero))
    told = [(fault.status, fault.episode, fault.invocation) for fault in faults]
    assert told == [("lost", 1, 1), ("lost", 2, 1)]
    assert "killed by SIGKILL" in faults[0].error
    drawn = {path.name: path.read_bytes() for path in (run.directory / "videos").iterdir()}
    assert drawn == {path.name: path.read_bytes() for path in (calm_libero / "videos").iterdir()}
    assert (run.directory / "report.html").read_text().count("data:video/mp4;base64,") == EPISODES


@pytest.mark.parametrize(("bad", "words"), [("gripper", "1.6 in action"), ("500", "answered 500"), ("422", "too long")])
def test_policy_errors_fail_counts_them_separately(bad, words, flags, undisturbed, tmp_path):
    with PolicyService(tmp_path / "policy.txt", "--chunk", "1", "--bad", bad, "--bad-episode", "1") as service:
        command = ("--policy-url", service.url, "--policy-errors", "fail", *flags)
        with LightEvaluation(tmp_path, "run", *command) as run:
            output = run.end()
        done = results(run.directory)
        with LightEvaluation(tmp_path, "run", *command) as again:
            assert f"0 of {EPISODES} to do" in again.end(), "resuming does not do it again"
    assert f"policy errors: 1 of {EPISODES} episodes, counted as failures" in output
    assert f"success rate 0.0 % (0/{EPISODES})" in output
    assert done[0, 1][:2] == (False, 5) and results(run.directory) == done
    assert {**done, (0, 1): undisturbed[0, 1]} == undisturbed
    summary = json.loads((run.directory / "summary.json").read_text())
    assert (summary["policy_errors"], summary["episodes"], summary["complete"]) == (1, EPISODES, True)
    rows = [json.loads(line) for line in (run.directory / "episodes.jsonl").read_text().splitlines()]
    assert [words in row.get("policy_error", "") for row in rows] == [False, True, False]
    page = (run.directory / "report.html").read_text()
    assert "policy errors, counted as failures" in page and words in page
    assert len(summary["faults"]) == (2 if bad == "500" else 0), "what a repeat may mend is repeated first"


def test_policy_errors_stop_the_run_by_default(flags, tmp_path):
    with (
        PolicyService(tmp_path / "policy.txt", "--chunk", "1", "--bad-episode", "1") as service,
        LightEvaluation(tmp_path, "run", "--policy-url", service.url, *flags) as run,
    ):
        assert "returned 1.6 in action 0, dimension 6" in run.end(code=1)
    assert sorted(results(run.directory)) == [(TASK, 0)]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MB, where this machine lets us mount one."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(directory)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small file system")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=False)


def test_disk_full_during_a_run(policy, flags, undisturbed, small_disk):
    with policy.holding(1), LightEvaluation(small_disk, "run", "--policy-url", policy.url, *flags) as run:
        run.wait_mid_episode()
        filler = small_disk / "filler"
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        policy.release()
        output = run.end(code=1)
        assert run.workers() == {} and "--resume run" in output
        assert "free some space" in output, output
    filler.unlink()
    done_before = results(run.directory)
    assert len(done_before) >= 1
    with LightEvaluation(small_disk, "run", "--policy-url", policy.url, *flags) as run:
        run.end()
        check(run, undisturbed)


def test_worker_with_unwritable_log_exits_as_fatal(tmp_path):
    """Else its run would start another and try its episodes on the same full disk until none of their tries is left."""
    heartbeat, handle = WorkerHeartbeat.create()
    start = ["-m", "vla_evaluation.workers.worker", str(tmp_path / "none"), "worker-0", "1"]
    command = [sys.executable, *start, str(os.getpid()), "0", str(handle)]
    with open("/dev/full", "w") as full:
        ended = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=full, stderr=full, pass_fds=(handle,))
        assert ended.wait(120) == FATAL
    os.close(handle)
    child = Child("worker-0", ended, heartbeat, tmp_path / "worker-0.log")
    assert child.exit_message().startswith("worker-0 stopped, and its reason could not be written to ")
    child.log.write_text("a warning\nstop: no space left\n")
    assert child.exit_message() == "no space left"
    before = child.log.write_text("stop: of one that was here before\n")
    later = Child("worker-0", ended, heartbeat, child.log, before)
    assert later.exit_message().startswith("worker-0 stopped, and its reason could not be written to ")
    child.log.write_text(child.log.read_text() + "stop: no space left\nException ignored in: a library's end\n")
    assert later.exit_message() == "no space left"


@pytest.mark.parametrize("more", [(), ("--policy-errors", "fail", "--retries", "0")], ids=["stop", "fail"])
def test_unreachable_policy_ends_the_run_without_losses(more, flags, undisturbed, tmp_path):
    """Its silence is no error of its own, and so never a failed episode."""
    with PolicyService(tmp_path / "policy.txt", "--chunk", "1", "--delay-ms", "30") as service:
        command = ("--policy-url", service.url, "--policy-timeout-s", "2", "--act-timeout-s", "1", *more, *flags[:-2])
        with service.holding(1), LightEvaluation(tmp_path, "run", *command) as run:
            run.wait_mid_episode()
            service.kill()
            output = run.end(code=1)
            assert more or ("error: the policy became unreachable" in output and "--resume run" in output)
        service.start()
        with LightEvaluation(tmp_path, "run", *command) as run:
            run.end()
            check(run, undisturbed)
