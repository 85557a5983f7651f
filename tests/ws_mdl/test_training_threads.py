"""On a CPU: in how many threads a run is trained. Chosen when it begins, and stored: sums depend on it."""

from __future__ import annotations

import pytest
import torch

from services.ws_mdl.epochs import load_run_state, save, state_of
from services.ws_mdl.practice import vit
from services.ws_mdl.transformer.config import Config
from services.ws_mdl.transformer.train import Trainer, train_model
from tests.ws_mdl.practice import SMALL, machine, trained_to_end
from vla_modelkit import threads
from vla_modelkit.training.weights import WeightFiles

MAX = 4


@pytest.fixture(autouse=True)
def idle(monkeypatch):
    """A machine of four cores, on which the caller has set nothing: `idle(n)` says how many are idle from now on."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "max_threads", lambda: MAX)
    monkeypatch.setattr(threads, "SAMPLE_S", 0)
    yield lambda *counts: monkeypatch.setattr(threads, "idle_cores", iterator(*counts))
    torch.set_num_threads(before)


def iterator(*counts: int):
    """Return a function that answers with one count after the other, the last one for ever."""
    left = list(counts)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


@pytest.mark.parametrize(("cores", "expected"), [(1, 1), (3, 3), (64, MAX)])
def test_a_run_computes_on_the_idle_cores_and_prints_it(idle, cores, expected):
    idle(cores)
    chosen = machine()
    assert (chosen.threads, torch.get_num_threads()) == (expected, expected)
    assert f"{expected} thread" in str(chosen)


def test_a_moment_without_idle_cores_does_not_decide(idle, monkeypatch):
    monkeypatch.setattr(threads, "SAMPLE_S", 0.05)
    idle(1, 1, 3)
    assert machine().threads == 3


def test_the_callers_number_takes_precedence(idle, monkeypatch):
    idle(3)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)  # what torch does with it when it starts
    assert machine().threads == 2
    assert threads.restore_threads(4) == 2


def vit_run(volume):
    return vit.get_training(vit.Config(**SMALL, batch_size=479, patch=8, dropout=0.2), machine(), volume)


def test_a_run_continues_in_the_threads_that_it_began_in(idle, volume, capsys):
    idle(3)
    whole, stopped = vit_run(volume), vit_run(volume)
    trained_to_end(whole)
    trained_to_end(stopped, after=whole.batches_per_epoch + 1)
    files = WeightFiles(stopped.config.run_directory(volume), stopped.config.LAB)
    save(stopped, files)
    idle(1)
    resumed = vit_run(volume)
    assert resumed.machine.threads == 1
    load_run_state(resumed, files.load_latest()[1])
    assert resumed.machine.threads == torch.get_num_threads() == 3
    trained_to_end(resumed)
    ours, theirs = state_of(resumed), state_of(whole)
    assert ours["threads"] == theirs["threads"] == 3
    assert all(torch.equal(ours["model_state_dict"][key], value) for key, value in theirs["model_state_dict"].items())
    assert "last bits" not in capsys.readouterr().out


def test_a_number_that_this_machine_does_not_have_is_reported(idle, volume, capsys):
    idle(3)
    run = vit_run(volume)
    load_run_state(run, {**state_of(run), "threads": 9})
    assert run.machine.threads == MAX
    assert "4 threads instead of 9" in capsys.readouterr().out


def test_a_transformer_continues_in_the_threads_that_it_began_in(idle, volume, monkeypatch, capsys):
    steps, step = [], Trainer.step
    monkeypatch.setattr(Trainer, "step", lambda *given: steps.append(torch.get_num_threads()) or step(*given))
    own = {"size": "tiny", "corpus": "reverse", "d_model": 16, "N": 1, "h": 2, "d_ff": 16, "val_sentences": 2}
    for epochs, cores in ((1, 3), (2, 1)):
        idle(cores)
        train_model(Config(**own, batch_tokens=4096, device="cpu", name="run", epochs=epochs), volume)
        assert set(steps) == {3}
        assert "cpu, " in (printed := capsys.readouterr().out) and "3 threads" in printed
