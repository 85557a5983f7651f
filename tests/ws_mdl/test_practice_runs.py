"""What every practice lab's run is held to: stopped anywhere it goes on to the bit, and it says what it measured."""

import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from services.ws_mdl.epochs import load_run_state, save, state_of
from services.ws_mdl.practice import bert, forecast, gpt, lstm, skipgram, training, vae, vit
from services.ws_mdl.practice.settings import FREE
from tests.ws_mdl.practice import SMALL, corpus, machine, trained_to_end
from vla_modelkit.training.weights import WeightFiles

TEXT, PAIRS = "things.txt", "things.tsv"
SERIES = {"series": "made", "lookback": 48, "patch": 8, "horizon": 8, "direct": 16, "season": 24}
TRANSLATOR = {"corpus": PAIRS, "batch_size": 40, "hidden": 24, "layers": 1, "seq": 24, "val_sentences": 4}
# By lab: its module, its own settings, and settings that give it other data.
LABS = {
    "vit": (vit, {"batch_size": 479, "patch": 8}, {"held_fraction": 0.4}),
    "bert": (bert, {"corpus": TEXT, "batch_size": 40, "seq": 24, "held_fraction": 0.3}, {"held_fraction": 0.4}),
    "gpt": (
        gpt,
        {"corpus": TEXT, "batch_size": 16, "seq": 16, "tokenizer": "bpe", "vocab_size": 80, "held_fraction": 0.2},
        {"held_fraction": 0.4},
    ),
    "forecast": (forecast, {**SERIES, "batch_size": 96}, {"held_fraction": 0.4}),
    "skipgram": (
        skipgram, {"corpus": TEXT, "batch_size": 80, "held_fraction": 0.3, "rare": 1.0}, {"held_fraction": 0.4}
    ),
    "vae": (vae, {"batch_size": 540, "width": 4, "latent": 4, "anneal": 0.5, "sigma": 0.5}, {"data": "sprites"}),
    **{f"lstm {model}": (lstm, {**TRANSLATOR, "model": model}, {"val_fraction": 0.4})
       for model in ("attention", "plain", "transformer")},
}  # fmt: skip


@pytest.fixture(params=LABS)
def begun(request, volume, tmp_path):
    """Return a lab's module, and a function that begins its run."""
    module, own, _ = LABS[request.param]
    text = Path(corpus(tmp_path)).read_text().splitlines()
    (tmp_path / PAIRS).write_text("".join(f"{line}\t{' '.join(reversed(line.split()))}\n" for line in text))
    own = {name: str(tmp_path / value) if name == "corpus" else value for name, value in own.items()}

    def begin(**changes):
        asked = {**SMALL, **own, "dropout": 0.2, **changes}
        known = {field.name for field in fields(module.Config)}
        config = module.Config(**{name: value for name, value in asked.items() if name in known})
        return module.get_training(config, machine(), volume)

    begin.own, begin.other = own, LABS[request.param][2]
    return module, begin


def same(one, other) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_a_run_that_was_stopped_continues_to_the_bit(begun, volume):
    _, begin = begun
    whole, stopped = begin(), begin()
    trained_to_end(whole)
    trained_to_end(stopped, after=whole.batches_per_epoch + 1)
    assert 0 < stopped.batches < stopped.batches_per_epoch, "it is stopped within its second epoch"
    files = WeightFiles(stopped.config.run_directory(volume), stopped.config.LAB)
    save(stopped, files)
    torch.manual_seed(99)  # nothing hangs on what torch would draw by itself
    resumed = begin()
    load_run_state(resumed, files.load_latest()[1])
    trained_to_end(resumed)
    assert same(state_of(resumed), state_of(whole)) and resumed.measure() == whole.measure()


def test_a_batch_is_learned_by_heart(begun):
    module, begin = begun
    if module is skipgram:
        pytest.skip("words that are neighbours and drawn as none have a cost of their own; test_practice_skipgram.py")
    run = begin(dropout=0.0, d_model=32, d_ff=64, epochs=400, lrate=1e-2, ema=0.0)
    index, state = torch.arange(6), run.generator.get_state()
    losses = []
    for _ in range(150):
        run.generator.set_state(state)  # the same examples: what is drawn is drawn the same
        losses.append(float(run.step(index)))
        if losses[-1] < 0.2 * losses[0]:
            return
    pytest.fail(f"the loss went from {losses[0]:.2f} to {losses[-1]:.2f}; expected a fifth")


def test_measuring_changes_nothing(begun):
    _, begin = begun
    run = begin()
    run.step(torch.arange(8))
    before = state_of(run)["generator"].clone(), [p.clone() for p in run.averaged.parameters()]
    first, again = run.measure(), run.measure()
    assert first == again and all(isinstance(value, float) for value in first.values())
    assert torch.equal(before[0], run.generator.get_state())
    assert all(map(torch.equal, before[1], run.averaged.parameters()))


def test_a_run_by_its_flags_saves_measures_shows_and_refuses_other_settings(begun, volume, monkeypatch, capsys):
    module, begin = begun
    config = begin(d_model=8).config
    lab = config.LAB
    keys = {**dict.fromkeys(("d_model", "N", "h", "d_ff", "epochs", "device", "precision", "warmup")), **begin.own}
    words = [f"--{key.replace('_', '-')}={getattr(config, key)}" for key in keys if hasattr(config, key)]

    def typed(*more) -> str:
        monkeypatch.setattr(sys, "argv", ["train", "--name=mine", *words, *more])
        with pytest.raises(SystemExit) as ended:
            training.main_of(module.Config, module.get_training, module.__doc__, "something")
        said = capsys.readouterr()
        assert ended.value.code == (1 if said.err else 0)
        return said.out + said.err

    says = typed()
    directory = volume.path("checkpoints") / lab / "mine"
    assert (directory / f"{lab}_01.pt").is_file() and "epoch 2, held out: " in says and "trained. Next: " in says
    assert list((volume.path("logs") / "tensorboard" / lab / "mine").iterdir())
    state = WeightFiles(directory, lab).load_latest()[1]
    again = training.train_model(module.Config.of(state["config"]), volume, module.get_training)
    assert not again.averaged.training and same(again.averaged.state_dict(), state["averaged_state_dict"])
    assert re.search(r"was trained with .*seed 0.* requested: .*seed 7", typed("--seed=7"))
    assert "epochs" in FREE and "resuming from" in typed("--epochs=3")


def test_a_run_does_not_continue_with_other_data(begun, tmp_path):
    _, begin = begun
    run, again, other = begin(), begin(), begin(**begin.other)
    state = state_of(run)
    again.restore(state, tmp_path / "one.pt")
    with pytest.raises(ValueError, match=rf"one.pt was trained on other data \({run.digest()}\).*use another --name"):
        other.restore(state, tmp_path / "one.pt")


@pytest.mark.parametrize(
    ("module", "wrong", "says"),
    [
        (vit, {"h": 3}, "h = 3 heads"),
        (vit, {"dropout": 1.0}, "dropout is 1.0; expected 0 or more, less than 1"),
        (gpt, {"warmup": -1}, "warmup is -1; expected 0 or more"),
        (gpt, {"top_p": 0.0}, "top_p is 0.0; expected more than 0, at most 1"),
        (bert, {"name": "a/b"}, "name 'a/b'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(module, wrong, says):
    with pytest.raises(ValueError, match=says):
        module.Config(**wrong)
