"""Real episodes over real HTTP while something is killed: every episode once, no fault counted against the policy."""

import contextlib
import os
import shutil
import signal
import subprocess

import pytest

from services.libero.evaluator.store import RunStore
from tests.libero.harness import Evaluation, PolicyService, results, wait_for

TASK, EPISODES, STEPS = 0, 3, 40
PLAN = [(TASK, episode) for episode in range(EPISODES)]


@pytest.fixture(scope="module")
def flags(libero_assets):
    return (
        "--assets", str(libero_assets), "--tasks", str(TASK), "--trials", str(EPISODES), "--max-steps", str(STEPS),
        "--video", "none", "--workers", "1", "--lease-s", "6", "--act-timeout-s", "10",
    )  # fmt: skip


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    options = ("--chunk", "1", "--delay-ms", "30")
    with PolicyService(tmp_path_factory.mktemp("policy") / "log.txt", *options) as service:
        yield service


@pytest.fixture(scope="module")
def undisturbed(policy, flags, tmp_path_factory):
    """What the episodes give when nothing happens."""
    with Evaluation(tmp_path_factory.mktemp("calm"), "calm", "--policy-url", policy.url, *flags) as run:
        output = run.end()
        assert f"success rate 0.0 % (0/{EPISODES})" in output and "report: " in output
        return results(run.folder)


def check(run: Evaluation, undisturbed: dict) -> list:
    """Every planned episode is there once, as if nothing had happened; returns the faults that were redone."""
    assert sorted(results(run.folder)) == PLAN
    assert results(run.folder) == undisturbed
    assert run.workers() == {}
    with RunStore(run.folder / "run.sqlite", readonly=True) as store:
        assert sum(row["done"] for row in store.counts().values()) == len(PLAN)
        return store.faults()


def test_a_worker_killed_in_mid_episode(policy, flags, undisturbed, tmp_path):
    with Evaluation(tmp_path, "run", "--policy-url", policy.url, *flags) as run:
        name = run.wait_mid_episode()
        os.kill(run.workers()[name], signal.SIGKILL)
        output = run.end()
        [fault] = check(run, undisturbed)
        assert fault.status == "lost" and "killed by SIGKILL" in fault.error
        assert "was killed by SIGKILL" in output


def test_a_worker_that_hangs_is_replaced_and_its_late_report_is_ignored(policy, flags, undisturbed, tmp_path):
    with Evaluation(tmp_path, "run", "--policy-url", policy.url, *flags) as run:
        name = run.wait_mid_episode()
        os.kill(run.workers()[name], signal.SIGSTOP)
        run.end()
        [fault] = check(run, undisturbed)
        assert fault.status == "lost" and "heartbeat" in fault.error


def test_the_policy_killed_and_restarted_in_mid_run(flags, undisturbed, tmp_path):
    with (
        PolicyService(tmp_path / "policy.txt", "--chunk", "1", "--delay-ms", "30") as service,
        Evaluation(tmp_path, "run", "--policy-url", service.url, "--act-timeout-s", "1", *flags[:-2]) as run,
    ):
        run.wait_mid_episode()
        service.kill()
        wait_for(lambda: run.peek("SELECT 1 FROM episodes WHERE status = 'error'"), "the worker's notice")
        service.start()
        run.end()
        [fault] = check(run, undisturbed)
        assert fault.status == "error", "one outage costs one attempt"


def test_the_evaluator_killed_and_resumed_with_the_same_command(policy, flags, undisturbed, tmp_path):
    command = ("--policy-url", policy.url, *flags)
    with Evaluation(tmp_path, "run", *command) as run:
        run.wait_mid_episode()
        assert run.workers()
        run.kill()
        wait_for(lambda: not run.workers(), "the workers' end", timeout_s=10)
    done_before = results(run.folder)
    assert 1 <= len(done_before) < len(PLAN)
    with Evaluation(tmp_path, "run", *command) as run:
        assert "(resumed)" in run.end()
        [fault] = check(run, undisturbed)
        assert fault.status == "lost" and fault.session == 1


def test_ctrl_c_saves_and_says_how_to_go_on(policy, flags, undisturbed, tmp_path):
    with Evaluation(tmp_path, "run", "--policy-url", policy.url, *flags) as run:
        run.wait_mid_episode()
        run.process.send_signal(signal.SIGINT)
        output = run.end(code=130)
        assert run.workers() == {}
        assert "nothing lost; go on with\n" in output
        [command] = [line for line in output.splitlines() if "--resume run" in line]
        assert command.split()[:4] == ["python", "-m", "services.libero.evaluator.evaluate", "libero_goal"]
    assert 1 <= len(results(run.folder)) < len(PLAN)
    with Evaluation(tmp_path, "run", "--policy-url", policy.url, *flags, "--resume") as run:
        run.end()
        assert check(run, undisturbed) == [], "a clean stop is no fault"


def test_a_policy_that_answers_nan_ends_the_run_with_its_words(flags, tmp_path):
    with PolicyService(tmp_path / "policy.txt", "--chunk", "1", "--nan-at", "3") as service:
        with Evaluation(tmp_path, "run", "--policy-url", service.url, *flags) as run:
            output = run.end(code=1)
        assert "could not be run in 3 tries each" in output and "nan" in output, output
        assert results(run.folder) == {}, "such an episode is no failure of the policy at the task"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MB, where this machine lets us mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_disk_that_fills_up_in_mid_run(policy, flags, undisturbed, small_disk):
    with Evaluation(small_disk, "run", "--policy-url", policy.url, *flags) as run:
        run.wait_mid_episode()
        filler = small_disk / "filler"
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        output = run.end(code=1)
        assert run.workers() == {} and "--resume run" in output
        assert "free some" in output, output
    filler.unlink()
    done_before = results(run.folder)
    assert len(done_before) >= 1
    with Evaluation(small_disk, "run", "--policy-url", policy.url, *flags) as run:
        run.end()
        check(run, undisturbed)


def test_a_policy_that_stays_away_ends_the_run_and_loses_nothing(flags, undisturbed, tmp_path):
    with PolicyService(tmp_path / "policy.txt", "--chunk", "1", "--delay-ms", "30") as service:
        command = ("--policy-url", service.url, "--policy-timeout-s", "2", "--act-timeout-s", "1", *flags[:-2])
        with Evaluation(tmp_path, "run", *command) as run:
            run.wait_mid_episode()
            service.kill()
            output = run.end(code=1)
            assert "error: the policy went away and did not come back" in output and "--resume run" in output
        service.start()
        with Evaluation(tmp_path, "run", *command) as run:
            run.end()
            check(run, undisturbed)
