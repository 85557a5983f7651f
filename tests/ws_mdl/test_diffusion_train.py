"""Training, stopping, resuming, sampling and scoring, in small."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from services.ws_mdl import epochs
from services.ws_mdl.diffusion import data, score, train, visualize
from services.ws_mdl.diffusion import sample as sampling
from services.ws_mdl.diffusion.config import Config
from vla_common.volume import Volume
from vla_modelkit.training.machine import TrainingMachine
from vla_modelkit.training.weights import WeightFiles

CPU = TrainingMachine(torch.device("cpu"))


def small(**changes):
    sizes = {"n_feat": 8, "timesteps": 20, "beta2": 0.2, "epochs": 2, "batch_size": 8, "save_every": 1}
    common = {"data": "digits", "context": True, "device": "cpu", "precision": "fp32"}
    return Config(**{**common, **sizes, **changes})


@pytest.fixture(scope="module")
def few():
    whole = data.load("digits")
    return data.LabelledImages("digits", whole.x[:40], whole.labels[:40], whole.classes)


@pytest.fixture
def volume(tmp_path, monkeypatch, few):
    monkeypatch.setattr(train, "load", lambda source: few)
    return Volume(tmp_path)


class StopAfter:
    def __init__(self, batches=10**9):
        self.left = batches

    @property
    def requested(self):
        self.left -= 1
        return self.left < 0


def weights(run):
    return {**run.nn_model.state_dict(), **{f"averaged.{k}": v for k, v in run.averaged.state_dict().items()}}


def test_a_run_stopped_in_mid_epoch_ends_in_the_same_bits(few, tmp_path):
    whole = train.get_training(small(), CPU, few)
    while whole.epoch < 2:
        epochs.train_epoch(whole, StopAfter())

    files = WeightFiles(tmp_path, train.PREFIX)
    first = train.get_training(small(), CPU, few)
    assert not epochs.train_epoch(first, StopAfter(2)) and first.batches == 3
    epochs.save(first, files)
    second = train.get_training(small(seed=99), CPU, few)  # nothing of a fresh run may shine through
    second.restore(files.load_latest()[1], tmp_path)
    while second.epoch < 2:
        epochs.train_epoch(second, StopAfter())
    assert (second.global_step, whole.global_step) == (10, 10)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(second)[name]), name


def test_the_loss_falls(few):
    run = train.get_training(small(lrate=3e-3, epochs=20), CPU, few)
    index = torch.arange(8)
    losses = [train.train_step(run, index).item() for _ in range(80)]
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:5])


def test_the_rate_falls_evenly_and_the_average_follows(few):
    run = train.get_training(small(epochs=4), CPU, few)
    run.epoch = 1
    before = run.averaged.out[3].bias.clone()
    train.train_step(run, torch.arange(8))
    assert run.optim.param_groups[0]["lr"] == pytest.approx(1e-3 * 3 / 4)
    now, averaged = run.nn_model.out[3].bias, run.averaged.out[3].bias
    torch.testing.assert_close(averaged, torch.lerp(before, now.detach(), 1 - 2 / 11))


def test_context_is_left_out_at_random_or_always(few, monkeypatch):
    seen = []
    for keep, context in ((1.0, True), (0.0, True), (1.0, False)):
        run = train.get_training(small(keep_context=keep, context=context), CPU, few)
        monkeypatch.setattr(run, "nn_model", lambda x, t, c: seen.append(c) or x)
        train.loss_of(run, few.x[:8], few.labels[:8])
    assert seen[0].sum(1).tolist() == [1] * 8
    assert seen[1].sum() == 0 and seen[2].sum() == 0


def test_a_run_writes_weights_and_curves_and_continues_after_a_damaged_file(volume, few, capsys):
    assert train.train_model(small(epochs=1), volume)
    directory = small().run_directory(volume)
    assert [path.name for path in directory.glob("*.pt")] == ["model_00.pt"]
    assert list((volume.root / "logs" / "tensorboard" / "diffusion" / small().name).glob("events.*"))
    assert train.train_model(small(epochs=2), volume)
    (directory / "model_01.pt").write_bytes((directory / "model_01.pt").read_bytes()[:2000])
    assert train.train_model(small(epochs=2), volume)
    said = capsys.readouterr()
    assert "model_01.pt cannot be read" in said.err and "loading the previous file" in said.err
    assert "resuming from model_00.pt: epoch 1, step 5" in said.out


def test_a_resumed_run_must_not_differ_in_what_its_weights_depend_on(volume, tmp_path):
    train.train_model(small(epochs=1), volume)
    with pytest.raises(ValueError, match="n_feat 8.* n_feat 16.* --name"):
        train.train_model(small(n_feat=16, epochs=2), volume)
    stored = dataclasses.asdict(small())
    small(epochs=9, keep=1).check_same_settings(stored, tmp_path)  # more epochs are no drift
    with pytest.raises(ValueError, match="preload is none"):
        train.train_model(small(preload="none"), volume)


@pytest.mark.parametrize(
    "changes", [{"epochs": 0}, {"keep_context": 1.5}, {"name": "../x"}, {"schedule": "square"}, {"preload": "oldest"}]
)
def test_settings_that_cannot_be_are_refused(changes):
    with pytest.raises(ValueError, match="expected|--name|choose"):
        small(**changes)


# --- pictures and scores ------------------------------------------------------------------------------------


@pytest.fixture
def trained(volume, few):
    train.train_model(small(epochs=1), volume)
    return sampling.open_run(None, volume, "cpu")


def test_samples_become_files_that_can_be_looked_at(trained):
    request = sampling.Request(count=6, columns=3, compare=True, context="all")
    written = sampling.sample_and_save(request, trained)
    grid, gif, schedule, compared = (Image.open(path) for path in written if path.suffix != ".html")
    assert grid.size == ((3 * 17 - 1) * 4, 2 * (16 * 4 + visualize.BAND))
    assert gif.n_frames > 5 and gif.size == grid.size
    assert schedule.size[0] > 500 and compared.size[1] > 3 * 16
    again = sampling.sample_and_save(request, trained)
    assert [path.name for path in again] == [path.name for path in written]


def test_every_class_is_named_where_its_images_begin(trained, tmp_path):
    names = sampling.names_of(sampling.Request(count=6, context="all"), trained)
    assert names == ["0", "1", "3", "5", "6", "8"]
    assert sampling.names_of(sampling.Request(count=2, context="3+5"), trained) == ["3+5", "3+5"]
    assert sampling.names_of(sampling.Request(count=2, sampler="incorrect"), trained) == []
    drawn = visualize.named_grid(torch.ones(6, 1, 16, 16), 3, ["hero", "hero", "food", "food", "food", "spell"])
    dark = [[_has_ink(drawn, row, column) for column in range(3)] for row in range(2)]
    assert dark == [[True, False, True], [True, False, True]]


def _has_ink(drawn, row, column):
    """Return whether something is written above that picture of a white grid."""
    left, top = column * 17 * 4, row * (16 * 4 + visualize.BAND)
    return np.asarray(drawn)[top : top + visualize.BAND, left : left + 64].min() < 128


def test_requests_with_other_images_have_other_files():
    others = [{"guidance": 2.0}, {"count": 8}, {"eta": 0.5}, {"order": 2}, {"seed": 1}, {"steps": 10}, {"context": "0"}]
    names = [sampling.stem_of(sampling.Request(**changes)) for changes in ({}, *others)]
    assert len(set(names)) == len(names)


def test_the_comparison_shows_ddim_as_it_was_requested(trained, tmp_path, monkeypatch):
    shown = {}

    def keep(path, rows, columns):
        shown.update({title: x for title, x, _ in rows})

    monkeypatch.setattr(sampling.visualize, "save_comparison", keep)
    request = sampling.Request(steps=5, order=2, eta=1.0, clip=True, spacing=1.5, count=6, columns=3, context="all")
    sampling.save_comparison(request, trained, tmp_path)
    assert list(shown) == ["DDPM, 20 steps", "DDIM, 5 steps", "incorrect: no noise added back"]
    request.count = 3
    assert torch.equal(shown["DDIM, 5 steps"], sampling.sample(request, trained)[0])
    request.sampler = "incorrect"
    sampling.save_comparison(request, trained, tmp_path)
    assert torch.equal(shown["DDIM, 20 steps"], sampling.sample(sampling.Request(count=3, context="all"), trained)[0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 5, "sampler": "ddpm"}, "--steps .*ddim"),
        ({"spacing": 1.5, "sampler": "ddpm"}, "--spacing .*ddim"),
        ({"order": 2, "sampler": "ddpm"}, "--order .*ddim"),
        ({"guidance": 2.0, "sampler": "incorrect"}, "--guidance"),
        ({"eta": 2.0}, "eta is 2.0"),
        ({"count": 0}, "count is 0"),
    ],
)
def test_requests_that_make_no_sense_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        sampling.Request(**changes)


def test_a_run_without_context_refuses_one(volume):
    train.train_model(small(epochs=1, context=False), volume)
    run = sampling.open_run(small(context=False).name, volume, "cpu")
    with pytest.raises(ValueError, match="trained without context"):
        sampling.sample(sampling.Request(context="3", count=2), run)


def test_the_classifier_learns_the_real_images():
    _, held_out = score.train_classifier(data.load("digits"), epochs=4)
    assert held_out > 0.9


def test_the_frechet_distance_is_that_of_normal_distributions():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(20000, 3))
    b = rng.normal(size=(20000, 3)) * [1, 2, 3] + [1, 0, 0]
    assert score.frechet_distance(a, a) == pytest.approx(0, abs=1e-6)
    assert score.frechet_distance(a, b) == pytest.approx(1 + 0 + 1 + 4, rel=0.05)  # |Δμ|² + Σ(σ_a - σ_b)²
    assert score.frechet_distance(a, b) == pytest.approx(score.frechet_distance(b, a), rel=1e-6)
    turned = a @ np.linalg.qr(rng.normal(size=(3, 3)))[0]
    assert score.frechet_distance(turned, b @ np.eye(3)) == pytest.approx(score.frechet_distance(b, turned), rel=1e-6)
    with pytest.raises(ValueError, match="at least 2"):
        score.frechet_distance(a[:1], b)


def test_distances_compare_at_equal_numbers_of_images():
    rng = np.random.default_rng(0)
    real, few, many = rng.normal(size=(5000, 16)), rng.normal(size=(50, 16)), rng.normal(size=(500, 16))
    assert score.frechet_distance(real, few) > 3 * score.frechet_distance(real, many), "they are drawn alike"
    alike = score.frechet_of_sets(real, many, 50) / score.frechet_of_sets(real, few, 50)
    assert 0.7 < alike < 1.4
    assert score.frechet_of_sets(real, few, 50) == pytest.approx(score.frechet_distance(real, few))


def test_a_score_holds_every_sampler_and_is_stored(trained):
    result = score.score(score.Request(count=40), trained, data.load("digits"))
    assert set(result["samplers"]) == {"ddim", "ddim, order 2", "ddpm", "incorrect"}
    assert all(found["frechet"] > result["frechet_of_held_out_pictures"] for found in result["samplers"].values())
    assert result["equal_count"] == 40
    assert all(found["frechet_equal_count"] == pytest.approx(found["frechet"]) for found in result["samplers"].values())
    assert set(result["samplers"]["ddim"]["accuracy_per_class"]) == set(data.DIGITS)
    assert "accuracy" not in result["samplers"]["incorrect"]
    assert "Fréchet" in score.show(result)
    assert (trained.directory / "classifier.pt").exists()


def test_a_damaged_classifier_is_trained_again_and_a_sound_one_is_not(trained, few, capsys):
    (trained.directory / "classifier.pt").write_bytes(b"no weights")
    first, _ = score.classifier_for(trained, few)
    assert "training another" in capsys.readouterr().err
    second, _ = score.classifier_for(trained, few)
    assert torch.equal(first.head.weight, second.head.weight) and capsys.readouterr().err == ""


def test_a_grid_places_every_image():
    x = torch.stack([torch.full((1, 8, 8), value) for value in (-1.0, 0.0, 1.0)])
    sheet = visualize.grid(x, columns=2)
    assert sheet.shape == (3, 17, 17)
    assert (sheet[:, :8, :8] == 0).all() and (sheet[:, :8, 9:] == 0.5).all() and (sheet[:, 9:, :8] == 1).all()


def test_a_cpu_trains_in_float32_also_where_matrix_products_are_faster_in_bf16(monkeypatch):
    """Convolutions are not: their gradients in bf16 take many times as long."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert train.machine_for("cpu").dtype is None
    assert train.machine_for("cpu", "bf16").dtype is torch.bfloat16
