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

    folder = checkpoints()
    return load_engine(ModelSettings(device="cpu", dtype="fp32", max_batch=2), folder, load_config(folder))[0]


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
