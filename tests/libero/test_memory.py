"""What memory does to the number of workers, and what a process keeps of a scene that it has left."""

import gc
import subprocess
import sys
import time
import weakref

import pytest

from tests.libero.harness import ENVIRONMENT, ROOT
from tests.libero.invented import make_run
from vla_common import memory
from vla_evaluation import evaluate, provenance
from vla_evaluation.workers.job import InvocationClock
from vla_evaluation.workers.supervisor import Growth, StallPolicy, WorkerSupervisor, worker_names

LIMIT_S = 60.0
DIES = """
import os, signal, sys, time
if sys.argv[2] in ("worker-1", "worker-2"):
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""  # a worker whose memory the kernel wants back, beside one that goes on


@pytest.fixture
def machine(monkeypatch):
    def of(cores: int, free_gb: float) -> None:
        monkeypatch.setattr(provenance, "cores", lambda: cores)
        monkeypatch.setattr(provenance, "free_memory_gb", lambda: free_gb)

    return of


@pytest.mark.parametrize(
    ("cores", "free_gb", "asked", "episodes", "workers", "says"),
    [
        (64, 31.0, None, 500, 24, "24 workers on 64 cores: each takes up to 1.25 GB and 31.0 GB are free"),
        (64, 0.3, None, 500, 1, "1 worker on 64 cores: each takes up to 1.25 GB and 0.3 GB are free"),
        (16, 23.0, None, 500, 16, ""),
        (64, 31.0, None, 24, 24, ""),
        (64, 31.0, 20, 500, 20, ""),
        (64, 31.0, 64, 500, 64, "--workers 64: each takes up to 1.25 GB and 31.0 GB are free; if the kernel kills one"),
        (64, 31.0, 0, 500, 0, ""),
    ],
)  # fmt: skip
def test_short_memory_reduces_workers_with_a_message(machine, cores, free_gb, asked, episodes, workers, says):
    machine(cores, free_gb)
    assert evaluate.choose_workers(asked, episodes, 1.25) == workers
    said = evaluate.memory_notice(asked, episodes, workers, 1.25)
    assert said.startswith(says) and bool(said) == bool(says)


def supervisor_of(directory, store, names) -> WorkerSupervisor:
    limits, variables = StallPolicy(2, 30.0, LIMIT_S), lambda number: {}
    supervisor = WorkerSupervisor(
        directory, store, 1, InvocationClock.start(), names, limits, lambda success, place: False, None, variables,
        "dies", Growth(1.0),
    )  # fmt: skip
    supervisor.environment["PYTHONPATH"] = str(directory)
    return supervisor


@pytest.mark.parametrize("ran_out", [True, False])
def test_oom_killed_worker_is_not_replaced(tmp_path, monkeypatch, ran_out):
    kills = iter([5, 6, 6, 7] if ran_out else [5] * 100)
    seen = []
    monkeypatch.setattr(memory, "oom_kills", lambda: seen.append(next(kills)) or seen[-1])
    directory, store = make_run(tmp_path, trials=4, task_count=1, left=3)
    (directory / "dies.py").write_text(DIES)
    with store:
        supervisor = supervisor_of(directory, store, worker_names(3))
        supervisor.start()
        try:
            news, deadline = [], time.monotonic() + LIMIT_S
            while len(news) < 3 and not (ran_out and len(supervisor.children) == 1):
                assert time.monotonic() < deadline, news
                news += supervisor.step()
                time.sleep(0.02)
            told = [line for line in news if "out of memory:" in line]
            if ran_out:
                assert "continuing with 1 worker" in told[-1] and set(supervisor.children) == {"worker-0"}
                assert supervisor.growth is None and store.invocations()[0]["notes"]["workers"] == 1
            else:
                assert not told and all("starting another" in line for line in news)
                assert len(supervisor.children) == 3
        finally:
            supervisor.kill()
            supervisor.stop()


def test_cycles_are_freed_and_the_kernels_count_is_read():
    class Large:
        pass

    gc.disable()
    try:
        one = Large()
        one.itself = one
        gone = weakref.ref(one)
        del one
        assert gone() is not None
        memory.give_back()
        assert gone() is None
    finally:
        gc.enable()
    assert memory.oom_kills() >= 0


SCENES = """
import gc, sys
from pathlib import Path
from services.libero.benchmark import BENCHMARK
from vla_evaluation.workers import worker  # as a worker begins
env = BENCHMARK.make_env(Path(sys.argv[1]), Path(sys.argv[2]), ("agentview",), 64, "none")
first, second = BENCHMARK.tasks("libero_goal")[:2]

def held():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_")) // 1024

sizes = []
for task in (first, second, first, second, first):
    env.load_task(task, 7)
    sizes.append(held())
needless = {"scipy.ndimage", "scipy.spatial", "av"} & sys.modules.keys()
print(gc.get_freeze_count(), len(gc.get_objects()), needless or "-")
print(*sizes)
"""


def test_worker_memory_holds_one_scene(libero_assets, tmp_path):
    command = [sys.executable, "-c", SCENES, str(libero_assets), str(tmp_path)]
    said = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=True)
    counted, words = said.stdout.splitlines()
    kept, looked_at, needless = counted.split(" ", 2)
    assert int(kept) > int(looked_at), "the collector looks at more than it leaves alone"
    assert needless == "-", "imported where nothing is disturbed and no video is written"
    sizes = [int(word) for word in words.split()]
    assert len(sizes) == 5 and sizes[-1] <= sizes[1] + 20, f"MB after each scene: {sizes}"
