"""A run, a recording and a data set of an earlier version still open, report, convert and resume."""

from services.libero.oracle.policy import OraclePolicy
from tests.old_volume import old_volume, use
from tests.running import running
from vla_datasets.lerobot import LeRobotDataset
from vla_evaluation.store.runstore import read_run

__all__ = ["old_volume"]
RUN = "libero_goal-oracle-1"


def test_an_old_run_reports(old_volume):
    done = use(old_volume, "vla_evaluation.runs", "report", RUN)
    assert done.returncode == 0, done.stderr
    assert "(1/1)" in done.stdout
    assert (old_volume / "runs" / RUN / "report.html").stat().st_size > 10_000
    with read_run(old_volume / "runs" / RUN) as store:
        (row,) = store.finished()
    assert row.success and (old_volume / "runs" / RUN / row.result["recording"]).is_file()


def test_an_old_run_that_is_resumed_says_what_differs(old_volume):
    """Its environment's lock is another one by now."""
    with running(OraclePolicy()) as service:
        words = ("services.libero", "libero_goal", "--policy-url", service.url, "--resume", RUN)
        done = use(old_volume, *words, "--tasks", "8", "--trials", "1")
    assert done.returncode and "Traceback" not in done.stderr
    assert "lock" in done.stdout + done.stderr


def test_an_old_data_set_has_no_faults(old_volume):
    done = use(old_volume, "services.libero.datasets", "old", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    dataset = LeRobotDataset(old_volume / "datasets" / "old")
    assert len(dataset) == 81 and dataset.frames(0, "observation.images.image", [0]).shape == (1, 64, 64, 3)


def test_an_old_recording_becomes_a_data_set(old_volume):
    words = ("services.libero.datasets", "old", "--format", "lerobot-v3.0", "--size", "32", "--name", "again")
    done = use(old_volume, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    again, before = (LeRobotDataset(old_volume / "datasets" / name) for name in ("again", "old"))
    assert (again.columns(0)["action"] == before.columns(0)["action"]).all()
