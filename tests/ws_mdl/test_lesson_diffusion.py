"""Plain diffusion: the fast code's numbers from the fast code's weights, and every shape as its line says."""

import copy
from pathlib import Path

import pytest
import torch

from lessons import diffusion as lesson
from services.ws_mdl import epochs
from services.ws_mdl.diffusion import data, samplers, schedule, train
from services.ws_mdl.diffusion.config import Config
from services.ws_mdl.diffusion.model import ContextUnet
from tests.lesson_shapes import Shapes
from vla_modelkit.training.machine import TrainingMachine

CLOSE = {"atol": 2e-5, "rtol": 0}
FEATURES, TIMESTEPS = 8, 20


class Stop:
    requested = False


@pytest.fixture
def both():
    """Return the lesson's network and the fast one, in eval mode, with the same weights."""
    torch.manual_seed(0)
    fast = ContextUnet(1, FEATURES, 10, 16)
    plain = lesson.ContextUnet(1, FEATURES, 10, 16)
    plain.load_state_dict(fast.state_dict())
    return plain.eval(), fast.eval()


@pytest.fixture(params=[(500, 1e-4, 0.02), (TIMESTEPS, 1e-4, 0.2)], ids=["course", "short"])
def schedules(request):
    return lesson.linear_schedule(*request.param), schedule.linear_schedule(*request.param)


def pictures(count: int = 6) -> torch.Tensor:
    return torch.randn(count, 1, 16, 16, generator=torch.Generator().manual_seed(1))


def test_it_is_short_enough_to_be_read():
    assert len(Path(lesson.__file__).read_text().splitlines()) <= 250


def test_the_schedule_and_what_it_does_to_an_image_are_the_fast_ones(schedules):
    plain, fast = schedules
    for name in ("b_t", "a_t", "ab_t"):
        assert torch.equal(getattr(plain, name), getattr(fast, name)), name
    t = torch.tensor([0, 1, 2, 10, 19, 20])
    ours = lesson.perturb_input(pictures(), t, pictures().flip(0), plain.ab_t)
    assert torch.equal(ours, schedule.perturb_input(fast, pictures(), t, pictures().flip(0)))


def test_the_same_weights_predict_the_same_noise(both):
    plain, fast = both
    time, context = torch.linspace(0, 1, 6)[:, None], torch.eye(10)[:6]
    torch.testing.assert_close(plain(pictures(), time, context), fast(pictures(), time, context), **CLOSE)


@pytest.mark.parametrize("guidance", [0.0, 1.0, 2.5])
def test_guidance_is_the_fast_ones(both, guidance):
    plain, fast = both
    time, context = torch.full((6, 1), 0.3), torch.eye(10)[:6]
    ours = lesson.guided_noise(plain, pictures(), time, context, guidance)
    theirs = samplers.predict_noise(fast, pictures(), torch.tensor([0.3]), context, guidance)
    torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize("t", [1, 2, 20])
def test_a_step_of_ddpm_is_the_fast_ones_and_the_last_adds_no_noise(schedules, t):
    plain, fast = schedules
    x, pred_noise, z = pictures(), pictures().flip(1), pictures().flip(2)
    ours = lesson.denoise_add_noise(x, t, pred_noise, z, plain)
    theirs = samplers.denoise_add_noise(fast, x, t, pred_noise, z if t > 1 else torch.zeros_like(z))
    torch.testing.assert_close(ours, theirs, **CLOSE)
    assert torch.equal(ours, lesson.denoise_add_noise(x, t, pred_noise, 2 * z, plain)) == (t == 1)


@pytest.mark.parametrize(("t", "t_prev"), [(1, 0), (20, 19), (20, 4)])
def test_a_step_of_ddim_is_the_fast_ones(schedules, t, t_prev):
    plain, fast = schedules
    ours = lesson.denoise_ddim(pictures(), t, t_prev, pictures().flip(2), plain.ab_t)
    theirs = samplers.denoise_ddim(fast, pictures(), t, t_prev, pictures().flip(2))
    torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_whole_samplers_end_in_the_same_images(both, guidance):
    plain, fast = both
    steps = lesson.linear_schedule(TIMESTEPS, 1e-4, 0.2), schedule.linear_schedule(TIMESTEPS, 1e-4, 0.2)
    context, draw = torch.eye(10)[:4], torch.Generator().manual_seed(3)
    noise = torch.randn(4, 1, 16, 16, generator=draw)
    ours = lesson.sample_ddpm(plain, noise, context, steps[0], draw, guidance)
    theirs, _ = samplers.sample_ddpm_context(fast, steps[1], 4, context, seed=3, guidance=guidance)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    for count in (1, 6, 7, TIMESTEPS):
        ours = lesson.sample_ddim(plain, noise, context, steps[0], count, guidance)
        theirs, _ = samplers.sample_ddim_context(fast, steps[1], 4, context, count, seed=3, guidance=guidance)
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_two_epochs_of_training_lead_to_the_same_network():
    whole = data.load("digits")
    few = data.LabelledImages("digits", whole.x[:40], whole.labels[:40], whole.classes)
    config = Config(context=True, n_feat=FEATURES, timesteps=TIMESTEPS, beta2=0.2, epochs=2, batch_size=8, device="cpu")
    run = train.get_training(config, TrainingMachine(torch.device("cpu")), few)
    plain = lesson.ContextUnet(1, FEATURES, 10, 16)
    before = copy.deepcopy(run.nn_model.state_dict())
    plain.load_state_dict(before)
    x, context = few.x, torch.nn.functional.one_hot(few.labels, 10).float()
    lesson.train_model(plain, x, context, lesson.linear_schedule(TIMESTEPS, 1e-4, 0.2), epochs=2, batch=8)
    while run.epoch < 2:
        epochs.train_epoch(run, Stop())
    time, context = torch.linspace(0.1, 1, 6)[:, None], torch.eye(10)[:6]
    ours, theirs = (model.eval()(pictures(), time, context) for model in (plain, run.nn_model))
    assert not torch.equal(plain.up0[0].weight, before["up0.0.weight"])
    # Not weight by weight: a bias that a norm takes out again has a gradient of roundings, which Adam makes large.
    torch.testing.assert_close(ours, theirs, atol=1e-2, rtol=0)


def test_the_digits_are_the_fast_ones():
    x, context = lesson.digits()
    whole = data.load("digits")
    assert torch.equal(x, whole.x) and torch.equal(context.argmax(dim=1), whole.labels)


def test_every_shape_at_the_end_of_a_line_exists(both):
    plain, _ = both
    n = 3
    shapes = Shapes(lesson, {"n": n, "c": 1, "height": 16, "features": FEATURES})

    def lesson_is_run() -> None:
        steps, context = lesson.linear_schedule(4), torch.eye(10)[:n]
        x, _ = lesson.digits()
        lesson.train_model(plain, x[:n], context, steps, epochs=1, batch=n)
        lesson.sample_ddpm(plain, x[:n], context, steps, torch.Generator())
        lesson.as_text(lesson.sample_ddim(plain, x[:n], context, steps, 2))

    shapes.run(lesson_is_run)
    assert not shapes.wrong
    assert shapes.seen == set(shapes.lines) and len(shapes.lines) > 25
