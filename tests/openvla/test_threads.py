"""On a CPU: in how many threads an action is computed beside other programs; the tokens are the same in any number."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from vla_modelkit import threads

PROMPT = [1, 300, 301, 302, 29871]
THREADS = 4


@pytest.fixture
def several_threads():
    """Lets torch compute in several threads, whatever this machine and the tests' own settings have."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def full_machine():
    """Runs a program that computes without end on every core."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    time.sleep(0.5)
    yield
    for program in programs:
        program.kill()
        program.wait()


@pytest.fixture
def engine(several_threads, checkpoints):
    """An engine that may compute in several threads."""
    from services.openvla.checkpoint.config import load_config
    from services.openvla.service.loading import load_engine
    from services.openvla.service.settings import ModelSettings

    directory = checkpoints()
    return load_engine(ModelSettings(device="cpu", dtype="fp32", max_batch=2), directory, load_config(directory))[0]


def threads_used(engine, monkeypatch) -> set[int]:
    """Returns in how many threads torch computes the passes of an action."""
    counts, run = set(), engine.runner.run

    def counted(*arguments):
        counts.add(torch.get_num_threads())
        return run(*arguments)

    monkeypatch.setattr(engine.runner, "run", counted)
    engine.generate(pixels(engine), [PROMPT])
    return counts


def pixels(engine) -> np.ndarray:
    side = engine.model.config.towers[0].image_size
    return np.random.default_rng(0).integers(0, 256, (1, side, side, 3), np.uint8)


SPINNING = """
import os, sys
os.environ.update(OMP_WAIT_POLICY="active", OMP_NUM_THREADS=sys.argv[1])
import torch
from vla_modelkit import threads
before = threads.running_threads()
torch.ones(10**6).exp_()  # from here on torch's threads spin
print(before, threads.running_threads())
"""


def test_its_own_spinning_threads_are_counted_so_that_they_are_not_an_other_programs():
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        pytest.skip("one core")
    script = [sys.executable, "-c", SPINNING, str(cores)]  # with more than cores they sleep at once
    before, after = subprocess.run(script, capture_output=True, text=True, check=True).stdout.split()
    assert (int(before), int(after)) == (1, cores)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, float("inf")),
        ({"cpu.max": "max 100000"}, float("inf")),
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"user.slice/cpu.max": "400000 100000", "user.slice/user-1.slice/cpu.max": "max 100000"}, 4),
        ({"user.slice/cpu.max": "400000 100000", "user.slice/user-1.slice/cpu.max": "50000 100000"}, 0.5),
        ({"other.slice/cpu.max": "100000 100000"}, float("inf")),
    ],
)
def test_cores_that_control_groups_allow(tmp_path, files, expected):
    own = tmp_path / "own"
    own.write_text("1:name=systemd:/x\n0::/user.slice/user-1.slice\n")
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text + "\n")
    assert threads.cpu_limit(tmp_path / "cgroup", own) == expected


@pytest.mark.parametrize(("limit", "expected"), [(0.5, 1), (2.5, 2), (float("inf"), None)])
def test_no_more_cores_than_a_container_may_use(monkeypatch, limit, expected):
    monkeypatch.setattr(threads, "cpu_limit", lambda: limit)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(1000))
    found = threads.idle_cores()
    assert found == expected if expected else found > 2


def test_one_thread_where_other_programs_have_every_core(engine, full_machine, monkeypatch):
    assert threads_used(engine, monkeypatch) == {1}


@pytest.mark.parametrize(("idle", "expected"), [(1, 1), (3, 3), (64, THREADS)])
def test_as_many_threads_as_cores_are_idle_and_never_more_than_torch_has(engine, idle, expected, monkeypatch):
    monkeypatch.setattr(threads, "idle_cores", lambda: idle)
    assert threads_used(engine, monkeypatch) == {expected}


def test_threads_come_back_when_cores_are_idle_again(engine, monkeypatch):
    for idle in (1, THREADS):
        monkeypatch.setattr(threads, "idle_cores", lambda idle=idle: idle)
        assert threads_used(engine, monkeypatch) == {idle}


def test_the_tokens_are_the_same_in_any_number_of_threads(engine, monkeypatch):
    expected = engine.generate(pixels(engine), [PROMPT], keep_logits=True)
    tokens = expected.tokens
    for draft in (None, np.stack([tokens] * 3, axis=1), np.stack([tokens] * 3, axis=1) - 1):
        for idle in range(1, THREADS + 1):
            monkeypatch.setattr(threads, "idle_cores", lambda idle=idle: idle)
            found = engine.generate(pixels(engine), [PROMPT], draft, keep_logits=True)
            assert np.array_equal(found.tokens, tokens)
            np.testing.assert_allclose(found.logits, expected.logits, rtol=1e-3, atol=1e-3)
