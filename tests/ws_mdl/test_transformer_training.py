"""Training: it learns, stops and goes on with the same bits, and refuses what does not belong together."""

import os
import signal
import subprocess
import time
import weakref

import pytest
import torch
from torch import distributed, nn

from services.ws_mdl.transformer.config import Config, get_config
from services.ws_mdl.transformer.dataset import causal_mask
from services.ws_mdl.transformer.model import TranslationLoss, build_transformer
from services.ws_mdl.transformer.train import (
    MAX_POINTS,
    Sample,
    Trainer,
    get_ds,
    latest_weights_file_path,
    learning_rate,
    scores,
    train_model,
)
from services.ws_mdl.transformer.translate import find_run, load_trained
from services.ws_mdl.transformer.visualize import plot_curve
from tests import forked, several
from vla_modelkit.devices import choose_device
from vla_modelkit.training import weights as weight_files
from vla_modelkit.training.machine import TrainingMachine
from vla_modelkit.training.weights import WeightFiles

MACHINE = TrainingMachine(torch.device("cpu"))
SMALL = {
    "d_model": 16, "N": 1, "h": 2, "d_ff": 32, "batch_tokens": 128, "device": "cpu", "precision": "fp32",
    "val_sentences": 4, "log_every": 2, "warmup_steps": 20,
}  # fmt: skip
ROWS = [f"{' '.join('abcdefgh'[(i + j) % 8] for j in range(2 + i % 5))} w{i % 7}" for i in range(120)]


@pytest.fixture
def corpus(volume) -> str:
    """A corpus of 120 short pairs on the volume."""
    text = "".join(f"{row}\t{' '.join(reversed(row.split()))}\n" for row in ROWS)
    (volume.datasets / "letters.tsv").write_text(text)
    return "letters.tsv"


@pytest.fixture
def make(volume, corpus):
    """Return a function: settings -> a Trainer over the small corpus, resumed from its folder where it has weights."""

    def trainer(**changes) -> Trainer:
        config = Config(**{**SMALL, "corpus": corpus, "name": "run", **changes})
        directory = config.run_directory(volume)
        made = Trainer(config, MACHINE, get_ds(config, directory, MACHINE, volume), directory)
        made.resume()
        return made

    return trainer


def steps(trainer: Trainer, count: int) -> None:
    """Take that many steps, over as many epochs as they need, without validation."""
    loader = trainer.data.train_dataloader
    while count:
        loader.batch_sampler.set_position(trainer.epoch + 1, trainer.batches)
        for batch in loader:
            trainer.step([batch])
            count -= 1
            if not count:
                return
        trainer.finish_epoch(None)


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return trainer.model.state_dict()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# --- learning -----------------------------------------------------------------------------------------------


def test_the_loss_is_cross_entropy_over_real_words_with_smoothed_labels(make):
    trainer = make()
    trainer.model.eval()
    batch = next(iter(trainer.data.train_dataloader))
    pad = trainer.data.tokenizer_tgt.token_to_id("[PAD]")
    scores = trainer.model(batch.encoder_input, batch.decoder_input, batch.encoder_mask, batch.decoder_mask)
    expected = nn.CrossEntropyLoss(ignore_index=pad, label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(
        TranslationLoss(trainer.model, 0.1)(*batch), expected(scores.flatten(0, 1), batch.label.flatten())
    )


def test_training_learns(make):
    trainer = make(epochs=30)
    batch = next(iter(trainer.data.train_dataloader))
    with torch.inference_mode():
        before = float(trainer.loss_fn(*batch))
    steps(trainer, 120)
    trainer.model.eval()
    with torch.inference_mode():
        assert float(trainer.loss_fn(*batch)) < 0.6 * before


def test_size_course_is_the_courses_recipe(make):
    config = get_config("course", corpus="opus_books")
    assert (config.batch_size, config.lr, config.schedule, config.seq, config.epochs) == (8, 1e-4, "constant", 350, 20)
    assert (config.beta2, config.clip, config.precision, config.keep) == (0.999, 0.0, "fp32", 0)
    assert (config.d_model, config.N, config.h, config.d_ff, config.dropout) == (512, 6, 8, 2048, 0.1)
    korean = get_config("course", corpus="lemon-mint", seq=400)
    assert (korean.batch_size, korean.epochs, korean.seq) == (12, 30, 400)  # what is given stays
    trainer = make(size="course", seq=20)
    batches = list(trainer.data.train_dataloader)
    assert {tuple(batch.label.shape) for batch in batches[:-1]} == {(8, 20)}
    assert sum(len(batch.label) for batch in batches) == len(trainer.data.train_dataloader.dataset)
    assert trainer.optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def test_accumulated_batches_are_one_large_batch(make):
    one, many = make(dropout=0.0, accumulate=1, name="one"), make(dropout=0.0, accumulate=3, name="many")
    batches = [batch for batch, _ in zip(one.data.train_dataloader, range(3), strict=False)]
    many.step(batches)
    total = sum(batch.real.numel() for batch in batches)
    loss = sum(one.loss_fn.train()(*batch) for batch in batches) / total
    loss.backward()
    nn.utils.clip_grad_norm_(one.model.parameters(), 1.0)
    one.optimizer.param_groups[0]["lr"] = learning_rate(one.config, 1)
    one.optimizer.step()
    for name, value in weights(one).items():
        torch.testing.assert_close(weights(many)[name], value, atol=1e-5, rtol=0)


def test_scores_of_right_and_wrong_translations():
    right = [Sample("s", "uno due tre quattro cinque.", "uno due tre quattro cinque.")]
    wrong = [Sample("s", "uno due tre quattro cinque.", "uno due tre quattro sei.")]
    assert scores(right) == pytest.approx((1.0, 0.0, 0.0, 1.0))
    bleu, cer, wer, exact = scores(wrong)
    assert 0.4 < bleu < 0.8 and 0 < cer < 0.3 and wer == pytest.approx(1 / 6) and exact == 0.0


# --- stopping and going on ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stop_at", [2, 11, 17])  # within the first epoch, at another place of the second
def test_a_stopped_run_continues_with_the_same_bits(make, stop_at):
    straight, stopped = make(name="straight"), make()
    steps(straight, 25)
    steps(stopped, stop_at)
    stopped.save()
    torch.manual_seed(999)  # another process would have another state
    resumed = make()
    assert (resumed.global_step, resumed.batches) == (stop_at, stopped.batches)
    steps(resumed, 25 - stop_at)
    assert same(weights(resumed), weights(straight)) and resumed.token_count == straight.token_count
    assert float(resumed.loss_sum) == float(straight.loss_sum)


def test_an_epoch_leaves_weights_curve_and_events(volume, corpus):
    trainer = train_model(Config(**SMALL, corpus=corpus, name="run", epochs=2), volume)
    assert trainer.epoch == 1 and [point["epoch"] for point in trainer.history] == [0, 1]
    assert [point["step"] for point in trainer.points[:3]] == [1, 2, 4], "the first step, then every log_every-th"
    seconds = [point["seconds"] for point in trainer.points]
    assert seconds == sorted(seconds) and seconds[0] > 0 and seconds[-1] <= trainer.seconds
    names = sorted(path.name for path in trainer.directory.iterdir())
    assert names == ["curve.png", "tmodel_00.pt", "tmodel_01.pt", "tokenizer_en.json", "tokenizer_it.json"]
    events = list((volume.root / "logs" / "tensorboard" / "transformer" / "run").iterdir())
    assert events and all(event.stat().st_size > 1000 for event in events)
    again = train_model(Config(**SMALL, corpus=corpus, name="run", epochs=2), volume)
    assert again.points == trainer.points
    assert again.history == trainer.history, "all epochs are done: nothing is trained again"


def test_the_curve_begins_with_the_first_step_and_continues_after_a_stop(make):
    trainer = make()
    steps(trainer, 1)
    for step in range(1, 2 * MAX_POINTS):
        trainer.global_step = step
        trainer.add_point(1 / step, step / 60)
    assert trainer.points[0]["step"] == 1 and MAX_POINTS / 2 < len(trainer.points) <= MAX_POINTS
    trainer.save()
    assert make().points == trainer.points
    training = plot_curve([], "curve", trainer.points).axes[0].lines[0]
    assert training.get_xdata()[0] * 3600 == pytest.approx(1) and training.get_ydata()[0] == 1


def test_ctrl_c_saves_and_the_same_command_continues(volume, corpus):
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    module = "services.ws_mdl.transformer.train"
    command = forked.python("-m", module, *flags, f"--corpus={corpus}", "--name=run")
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, "--epochs=100000"], env=variables, stdout=subprocess.PIPE, text=True)
    lines = [process.stdout.readline() for _ in range(3)]
    while "epoch 00" not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], "".join(lines)
    time.sleep(0.3)  # somewhere in a later epoch
    process.send_signal(signal.SIGINT)
    try:
        rest, _ = process.communicate(timeout=1200)
    finally:
        process.kill()  # nothing to one that has ended
    assert process.returncode == 130 and "the same command resumes" in rest, rest
    newest = weight_files.load_state(latest_weights_file_path(volume.root / "checkpoints/transformer/run"))
    done = subprocess.run(
        [*command, f"--epochs={newest['epoch'] + 2}"], env=variables, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0 and f"{newest['batches']} batches are done" in done.stdout, done.stderr


def test_two_processes_learn_what_one_learns_with_their_batches_together(volume, corpus, make):
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in {**SMALL, "dropout": 0.0}.items()]
    module = ["-m", "services.ws_mdl.transformer.train", *flags, f"--corpus={corpus}", "--name=two", "--epochs=1"]
    several.trained(module, volume.root.parent, dict(os.environ))
    one = make(dropout=0.0)
    batches = list(one.data.train_dataloader)
    for pair in zip(batches[::2], batches[1::2], strict=False):
        one.step(list(pair))
    (file,) = WeightFiles(volume.root / "checkpoints/transformer/two", "tmodel").all()
    for name, value in weight_files.load_state(file)["model_state_dict"].items():
        torch.testing.assert_close(weights(one)[name], value, atol=2e-4, rtol=0)


def test_what_was_summed_stays_pythons_own(monkeypatch):
    """Gloo's thread would part with it otherwise: of 70 ends of a process group, one then came to none."""
    summed = []
    monkeypatch.setattr(distributed, "all_reduce", lambda tensor: summed.append(weakref.ref(tensor)))
    machine = TrainingMachine(torch.device("cpu"), world=2)
    assert (
        machine.all_reduce(1, 2) == [1, 2] and machine.all_reduce(0.5) == [0.5] and machine.all_reduce(3, 4) == [3, 4]
    )
    assert None not in [tensor() for tensor in summed]


# --- weight files -------------------------------------------------------------------------------------------


def write(directory, *names: str) -> None:
    for name in names:
        (directory / name).write_bytes(b"")


def test_the_newest_file_is_the_one_of_the_highest_number(tmp_path):
    write(
        tmp_path, "tmodel_99.pt", "tmodel_100.pt", "tmodel_9.pt", "tmodel_101_000020.pt", "tmodel_101_000003.pt", "x.pt"
    )
    assert latest_weights_file_path(tmp_path).name == "tmodel_101_000020.pt"
    write(tmp_path, "tmodel_101.pt")
    assert latest_weights_file_path(tmp_path).name == "tmodel_101.pt"


def test_old_files_go_and_so_do_parts_of_finished_epochs(make):
    trainer = make(keep=2)
    for epoch in range(4):
        steps(trainer, 2)
        trainer.save()
        trainer.epoch, trainer.batches = epoch, 0
        trainer.save()
    assert [path.name for path in WeightFiles(trainer.directory, "tmodel").all()] == ["tmodel_02.pt", "tmodel_03.pt"]


def test_a_write_that_fails_leaves_the_old_file(make, monkeypatch):
    trainer = make()
    steps(trainer, 1)
    path = trainer.save()
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        trainer.save()
    assert path.read_bytes() == before
    assert [p.name for p in trainer.directory.iterdir() if p.name.startswith(".")] == []


def test_weights_files_cannot_run_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"model_state_dict": {}, "epoch": 0, "global_step": 0, "evil": Evil()}, tmp_path / "tmodel_00.pt")
    with pytest.raises(weight_files.DamagedFileError):
        weight_files.load_state(tmp_path / "tmodel_00.pt")
    assert not (tmp_path / "ran").exists()


class CourseNorm(nn.Module):
    """Layer normalization as the course has it: divided by the standard deviation over n - 1 numbers."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.alpha, self.bias = norm.alpha, norm.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.alpha * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.bias


def with_course_norms(model: nn.Module) -> nn.Module:
    for module in list(model.modules()):
        if hasattr(module, "norm") and hasattr(module.norm, "alpha"):
            module.norm = CourseNorm(module.norm)
    return model


def test_a_file_of_the_course_loads_gives_its_outputs_and_trains_on(make):
    trainer = make()
    sizes = trainer.data.tokenizer_src.get_vocab_size(), trainer.data.tokenizer_tgt.get_vocab_size()
    torch.manual_seed(5)
    theirs = with_course_norms(build_transformer(*sizes, 350, 350, 16, 1, 2, 0.1, 32)).eval()
    optimizer = torch.optim.Adam(theirs.parameters(), lr=1e-4, eps=1e-9)
    theirs(torch.tensor([[2, 5, 3]]), torch.tensor([[2, 6]]), None, None).sum().backward()
    optimizer.step()
    state = {
        "epoch": 7, "global_step": 1234,
        "model_state_dict": theirs.state_dict(), "optimizer_state_dict": optimizer.state_dict(),
    }  # fmt: skip
    torch.save(state, trainer.directory / "tmodel_07.pt")
    resumed = make()
    assert (resumed.epoch, resumed.global_step) == (7, 1234)
    assert resumed.optimizer.param_groups[0]["betas"] == (0.9, 0.98) and resumed.optimizer.param_groups[0]["fused"]
    inputs = torch.tensor([[2, 5, 6, 3]]), torch.tensor([[2, 6, 5]]), None, causal_mask(3)
    resumed.model.eval()
    torch.testing.assert_close(resumed.model(*inputs), theirs(*inputs), atol=1e-4, rtol=0)
    steps(resumed, 2)
    for epoch in (5, 6):
        torch.save(state, trainer.directory / f"tmodel_{epoch:02d}.pt")
    for _ in range(3):  # each but the first knows from the file which epochs are its own
        run = make(keep=1)
        run.finish_epoch(None)
        run.save()
    names = [path.name for path in WeightFiles(trainer.directory, "tmodel").all()]
    assert names == ["tmodel_05.pt", "tmodel_06.pt", "tmodel_07.pt", "tmodel_10.pt"], "files that were put there stay"


@pytest.mark.parametrize(
    ("change", "sides"),
    [
        ({"d_model": 32}, "d_model 16.*d_model 32"),
        ({"N": 2}, "N 1; this model has N 2"),
        ({"h": 4}, "h 2; this model has h 4"),
        ({"norm": "post"}, "norm pre; this model has norm post"),
        ({"seq": 100}, "position table 350; this model has position table 100"),
        ({"positions": "rotary"}, "positions sinusoidal.*positions rotary"),
        ({"pair": "de-fr"}, "pair en-it.* de-fr"),
    ],
)
def test_weights_of_another_model_are_refused_with_both_sides(make, change, sides):
    trainer = make()
    steps(trainer, 1)
    trainer.save()
    with pytest.raises(ValueError, match=sides):
        make(**change)


def test_weights_of_another_vocabulary_are_refused_with_both_sides(make):
    trainer = make()
    steps(trainer, 1)
    trainer.save()
    fewer = make(name="other", min_frequency=20)
    for language in ("en", "it"):
        os.replace(fewer.directory / f"tokenizer_{language}.json", trainer.directory / f"tokenizer_{language}.json")
    with pytest.raises(ValueError, match=r"has the vocabularies .* --name"):
        make()


# --- translating with a trained run -------------------------------------------------------------------------


def test_the_run_that_was_trained_last_translates(volume, corpus, make):
    with pytest.raises(ValueError, match="no trained run in .*; train one: ./lab train transformer"):
        find_run(volume, None)
    for name in ("first", "second"):
        trainer = make(name=name)
        steps(trainer, 1)
        trainer.save()
        time.sleep(0.02)  # file times are that coarse
    assert find_run(volume, None).name == "second" and find_run(volume, "first").name == "first"
    with pytest.raises(ValueError, match="'third' not found in .*; known: first, second"):
        find_run(volume, "third")
    trained = load_trained(find_run(volume, None), "cpu")
    assert same(trained.model.state_dict(), weights(trainer)) and not trained.model.training


def test_translate_prints_the_translation_and_draws(volume, corpus, make):
    trainer = make()
    steps(trainer, 1)
    trainer.save()
    arguments = ["a b c", "--pictures", "--device", "cpu"]
    command = forked.python("-m", "services.ws_mdl.transformer.translate", *arguments)
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=1200)
    assert done.returncode == 0 and done.stdout.count("\n") == 1, done.stderr
    assert len(list((trainer.directory / "pictures").glob("attention_*.png"))) == 3


# --- settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"h": 5}, "d-model .* h = 5 heads, got 256"),
        ({"epochs": 0}, "epochs is 0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"preload": "newest"}, "expected latest, none, or an epoch"),
        ({"name": "../x"}, "name '../x'"),
        ({"seq": 2}, "seq is 2"),
        ({"size": "huge"}, "'huge'; choose tiny, small, base"),
    ],
)
def test_a_wrong_setting_is_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        Config(**wrong)


def test_a_device_that_is_not_here_is_named_with_those_that_are():
    with pytest.raises(ValueError, match="device 'cuda:99' not found on this machine: choose auto, or one of .*cpu"):
        choose_device("cuda:99")
