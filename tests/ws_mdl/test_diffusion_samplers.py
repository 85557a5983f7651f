"""Schedules and samplers against the closed forms of their papers."""

import itertools

import numpy as np
import pytest
import torch

from services.ws_mdl.diffusion import samplers
from services.ws_mdl.diffusion.model import ContextUnet
from services.ws_mdl.diffusion.schedule import (
    SCHEDULES,
    cosine_schedule,
    linear_schedule,
    perturb_input,
    predicted_x0,
)

STEPS = 50
SHORT = linear_schedule(STEPS, 1e-3, 0.2)


class TrueNoise:
    """Answers with the noise that truly is in x, for pictures whose clean form is known."""

    in_channels, h, n_cfeat = 1, 8, 3

    def __init__(self, schedule, x0):
        self.schedule, self.x0 = schedule, x0

    def __call__(self, x, time, context=None):
        ab = self.schedule.ab_t[round(float(time) * self.schedule.timesteps)]
        return (x - ab.sqrt() * self.x0) / (1 - ab).sqrt()


class BestGuess:
    """Answers with the best guess of the noise in pictures whose pixels are normally distributed: N(mean, std²)."""

    in_channels, h, n_cfeat = 1, 64, 3
    mean, std = 0.3, 0.25

    def __init__(self, schedule):
        self.schedule = schedule

    def __call__(self, x, time, context=None):
        ab = self.schedule.ab_t[round(float(time) * self.schedule.timesteps)]
        share = self.std**2 * ab.sqrt() / (self.std**2 * ab + 1 - ab)
        x0 = self.mean + share * (x - ab.sqrt() * self.mean)
        return (x - ab.sqrt() * x0) / (1 - ab).sqrt()

    def endless_steps(self, x):
        """Return where the deterministic way from x at the last step leads, in closed form."""
        ab = self.schedule.ab_t[-1]
        return self.mean + self.std * (x - ab.sqrt() * self.mean) / (self.std**2 * ab + 1 - ab).sqrt()


def posterior(schedule, x0, x, t: int):
    """Return mean and variance of x at step t - 1, given x at step t and the clean x0 (Ho et al., equations 6, 7)."""
    b, a, ab, ab_prev = schedule.b_t[t], schedule.a_t[t], schedule.ab_t[t], schedule.ab_t[t - 1]
    mean = ab_prev.sqrt() * b / (1 - ab) * x0 + a.sqrt() * (1 - ab_prev) / (1 - ab) * x
    return mean, (1 - ab_prev) / (1 - ab) * b


@pytest.fixture
def tiny():
    torch.manual_seed(0)
    return ContextUnet(1, n_feat=8, n_cfeat=3, height=8).eval()


@pytest.mark.parametrize("make", SCHEDULES.values())
@pytest.mark.parametrize("timesteps", (1, 2, 500))
def test_a_schedule_goes_from_the_image_to_noise(make, timesteps):
    schedule = make(timesteps)
    assert schedule.timesteps == timesteps and len(schedule.ab_t) == timesteps + 1
    assert schedule.ab_t[0] == 1 and schedule.a_t[0] == 1
    assert (schedule.ab_t.diff() < 0).all() and (schedule.b_t[1:] > 0).all() and (schedule.b_t[1:] < 1).all()
    torch.testing.assert_close(schedule.ab_t, torch.cumprod(1 - schedule.b_t.double(), 0).float())
    if timesteps == 500:
        assert schedule.ab_t[-1] < 0.01


def test_the_linear_schedule_is_the_courses():
    schedule = linear_schedule()
    course = (0.02 - 1e-4) * torch.linspace(0, 1, 501) + 1e-4
    torch.testing.assert_close(schedule.b_t[1:], course[1:])
    torch.testing.assert_close(schedule.ab_t[1:], (1 - course).log().cumsum(0).exp()[1:], rtol=2e-4, atol=0)


@pytest.mark.parametrize("arguments", [(0,), (10, 0.0, 0.1), (10, 0.2, 0.1), (10, 0.1, 1.0)])
def test_schedules_that_cannot_be_are_refused(arguments):
    with pytest.raises(ValueError, match="expected"):
        linear_schedule(*arguments)


@pytest.mark.parametrize("t", (1, 7, STEPS))
def test_perturbed_images_have_the_mean_and_variance_of_the_closed_form(t):
    x0 = torch.full((20000, 1, 1, 1), 0.7)
    x = perturb_input(
        SHORT, x0, torch.full((20000,), t), torch.randn(x0.shape, generator=torch.Generator().manual_seed(0))
    )
    ab = SHORT.ab_t[t]
    assert abs(x.mean() - 0.7 * ab.sqrt()) < 0.03
    assert abs(x.var() - (1 - ab)) < 0.03


# --- DDPM ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", (2, 10, STEPS))
def test_ddpm_takes_the_posteriors_mean_and_variance(t):
    x, eps = torch.randn(2, 4, 1, 8, 8, generator=torch.Generator().manual_seed(1)).unbind()
    mean, variance = posterior(SHORT, predicted_x0(SHORT, x, t, eps), x, t)
    zeros, ones = torch.zeros_like(x), torch.ones_like(x)
    got = samplers.denoise_add_noise(SHORT, x, t, eps, zeros)
    torch.testing.assert_close(got, mean, atol=1e-4, rtol=1e-4)
    spread = samplers.denoise_add_noise(SHORT, x, t, eps, ones, variance="posterior") - got
    torch.testing.assert_close(spread, variance.sqrt().expand_as(x), atol=1e-4, rtol=1e-4)
    spread = samplers.denoise_add_noise(SHORT, x, t, eps, ones) - got
    torch.testing.assert_close(spread, SHORT.b_t[t].sqrt().expand_as(x), atol=1e-4, rtol=1e-4)


def test_ddpm_with_the_true_noise_ends_at_the_image():
    x0 = torch.linspace(-1, 1, 64).reshape(1, 1, 8, 8)
    x, _ = samplers.sample_ddpm(TrueNoise(SHORT, x0), SHORT, 2, seed=0)
    torch.testing.assert_close(x, x0.expand(2, -1, -1, -1), atol=1e-4, rtol=0)


def test_the_incorrect_sampler_adds_no_noise(tiny):
    x, kept = samplers.sample_ddpm_incorrect(tiny, SHORT, 2, seed=0, save_rate=1)
    before, after = torch.from_numpy(kept[-2]), torch.from_numpy(kept[-1])
    mean = samplers.denoise_add_noise(SHORT, before, 1, tiny(before, SHORT.time(1)), torch.zeros_like(before))
    torch.testing.assert_close(after, mean, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(x, samplers.sample_ddpm(tiny, SHORT, 2, seed=0)[0])


# --- DDIM ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(1, STEPS + 1))
def test_the_steps_of_ddim_fall_to_zero_evenly(n):
    steps = samplers.ddim_steps(STEPS, n)
    assert (steps[0], steps[-1], len(steps)) == (STEPS, 0, n + 1)
    gaps = [a - b for a, b in itertools.pairwise(steps)]
    assert min(gaps) >= 1 and max(gaps) - min(gaps) <= 1
    if STEPS % n == 0:
        assert set(gaps) == {STEPS // n}  # the course's steps


@pytest.mark.parametrize("spacing", (1.0, 1.3, 1.5, 2.0, 4.0))
def test_steps_near_the_clean_image_are_all_different(spacing):
    for timesteps, n in itertools.product((1, 7, STEPS, 500), (1, 2, 3, 20, 499)):
        if n <= timesteps:
            steps = samplers.ddim_steps(timesteps, n, spacing)
            gaps = [a - b for a, b in itertools.pairwise(steps)]
            assert (steps[0], steps[-1], len(steps)) == (timesteps, 0, n + 1) and min(gaps) >= 1
    assert samplers.ddim_steps(500, 20, spacing)[-2] == max(1, int(500 / 20**spacing + 0.5))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        *(({"n": n}, f"{n} sampling steps.*expected 1 to {STEPS}") for n in (0, STEPS + 1, -3)),
        *(({"n": 3, "spacing": spacing}, f"spacing is {spacing}.*expected 1") for spacing in (0.9, 4.1, -1.0)),
        ({"n": 3, "order": 3}, "order is 3; expected 1"),
    ],
)
def test_a_way_out_of_range_is_refused(wrong, says, tiny):
    with pytest.raises(ValueError, match=says):
        samplers.sample_ddim(tiny, SHORT, 1, **wrong)


@pytest.mark.parametrize("order", (1, 2))
@pytest.mark.parametrize("schedule", [SHORT, cosine_schedule(STEPS)], ids=lambda s: s.name)
def test_ddim_with_the_true_noise_recovers_the_image_for_every_number_of_steps(schedule, order):
    x0 = torch.linspace(-1, 1, 64).reshape(1, 1, 8, 8)
    for n in range(1, STEPS + 1):
        x, _ = samplers.sample_ddim(TrueNoise(schedule, x0), schedule, 2, n, seed=n, order=order)
        torch.testing.assert_close(x, x0.expand(2, -1, -1, -1), atol=1e-4, rtol=0)


def test_ddim_of_every_step_with_eta_one_is_ddpm_with_the_posteriors_variance(tiny):
    ddpm, _ = samplers.sample_ddpm_context(tiny, SHORT, 3, None, seed=5, variance="posterior")
    ddim, _ = samplers.sample_ddim(tiny, SHORT, 3, STEPS, seed=5, eta=1.0)
    torch.testing.assert_close(ddim, ddpm, atol=1e-3, rtol=1e-3)


def far_from_the_closed_form(order: int, eta: float, n: int = 20) -> float:
    """Return the error of DDIM where the truth is known: of each pixel without fresh noise, else of their spread."""
    schedule = linear_schedule()
    model = BestGuess(schedule)
    x, _ = samplers.sample_ddim(model, schedule, 16, n, seed=0, eta=eta, order=order, spacing=1.5)
    if eta:
        return abs(x.std() / model.std - 1).item()
    first = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    return (x - model.endless_steps(first)).abs().mean().item()


def test_the_second_order_is_nearer_to_endless_many_steps_with_and_without_fresh_noise():
    assert far_from_the_closed_form(2, eta=0.0) < far_from_the_closed_form(1, eta=0.0) / 3
    assert far_from_the_closed_form(2, eta=1.0) < far_from_the_closed_form(1, eta=1.0) / 2
    for eta in (0.0, 1.0):
        assert far_from_the_closed_form(2, eta, n=80) < far_from_the_closed_form(2, eta, n=20) / 3


def test_eta_adds_fresh_noise(tiny):
    still = [samplers.sample_ddim(tiny, SHORT, 2, 10, seed=1, eta=eta)[0] for eta in (0.0, 0.5, 1.0)]
    assert not torch.allclose(still[0], still[1]) and not torch.allclose(still[1], still[2])


# --- all of them --------------------------------------------------------------------------------------------

MIXED = torch.eye(3)[[0, 1, 2, 0]]
ALL = {
    "ddpm": lambda model, **o: samplers.sample_ddpm(model, SHORT, 4, **o),
    "ddpm, context": lambda model, **o: samplers.sample_ddpm_context(model, SHORT, 4, MIXED, **o),
    "incorrect": lambda model, **o: samplers.sample_ddpm_incorrect(model, SHORT, 4, **o),
    "ddim": lambda model, **o: samplers.sample_ddim(model, SHORT, 4, 7, **o),
    "ddim, order 2": lambda model, **o: samplers.sample_ddim(model, SHORT, 4, 7, order=2, eta=1.0, **o),
    "ddim, context": lambda model, **o: samplers.sample_ddim_context(
        model, SHORT, 4, torch.eye(3)[[0, 1, 2, 0]], 7, **o
    ),
}


@pytest.mark.parametrize("name", ALL)
def test_a_seed_gives_the_same_images_and_another_seed_others(name, tiny):
    first, again, other = (ALL[name](tiny, seed=seed)[0] for seed in (3, 3, 4))
    assert torch.equal(first, again) and not torch.allclose(first, other)
    assert torch.isfinite(first).all() and first.shape == (4, 1, 8, 8)


@pytest.mark.parametrize("name", ALL)
def test_intermediate_images_are_kept_on_demand_and_end_with_the_result(name, tiny):
    x, kept = ALL[name](tiny, seed=3, save_rate=10)
    assert kept.shape[1:] == (4, 1, 8, 8) and len(kept) >= 7
    assert np.array_equal(kept[-1], x.numpy())
    assert len(ALL[name](tiny, seed=3)[1]) == 0


@pytest.mark.parametrize("spacing", [1.0, 1.5])
def test_a_video_of_few_steps_shows_every_one(tiny, spacing):
    x, kept = samplers.sample_ddim_context(tiny, SHORT, 2, None, 12, seed=0, save_rate=20, spacing=spacing)
    assert len(kept) == 12 and np.array_equal(kept[-1], x.numpy())


def test_a_mixed_context_lies_between_and_a_wrong_one_is_refused(tiny):
    mixed = torch.tensor([[1.0, 0.0, 0.6]])
    x, _ = samplers.sample_ddim_context(tiny, SHORT, 1, mixed, 5, seed=0)
    pure, _ = samplers.sample_ddim_context(tiny, SHORT, 1, torch.eye(3)[:1], 5, seed=0)
    assert not torch.allclose(x, pure)
    with pytest.raises(ValueError, match=r"\(1, 4\); expected \(1, 3\)"):
        samplers.sample_ddim_context(tiny, SHORT, 1, torch.ones(1, 4), 5)


def test_clipping_changes_nothing_where_predictions_are_images_and_keeps_all_others_in_range(tiny):
    x0 = torch.rand(2, 1, 8, 8) * 2 - 1
    for eta in (0.0, 1.0):
        plain, _ = samplers.sample_ddim(TrueNoise(SHORT, x0), SHORT, 2, 7, seed=1, eta=eta)
        clipped, _ = samplers.sample_ddim(TrueNoise(SHORT, x0), SHORT, 2, 7, seed=1, eta=eta, clip=True)
        torch.testing.assert_close(clipped, plain, atol=1e-4, rtol=0)
    wild, _ = samplers.sample_ddim(tiny, SHORT, 2, 7, seed=1)
    tame, _ = samplers.sample_ddim(tiny, SHORT, 2, 7, seed=1, clip=True)
    assert wild.abs().max() > 1.001 and tame.abs().max() <= 1.001


def test_bfloat16_products_change_the_images_by_roundings_only(tiny):
    exact, _ = samplers.sample_ddim(tiny, SHORT, 4, 7, seed=3)
    rounded, _ = samplers.sample_ddim(tiny, SHORT, 4, 7, seed=3, dtype=torch.bfloat16)
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).abs().max() < 0.05 * exact.std()


def test_guidance_of_one_changes_nothing_and_more_goes_beyond_the_context(tiny):
    x, time, context = torch.randn(2, 1, 8, 8), torch.tensor([0.5]), torch.eye(3)[:2]
    plain, without = tiny(x, time, context), tiny(x, time)
    with torch.no_grad():
        torch.testing.assert_close(samplers.predict_noise(tiny, x, time, context, 1.0), plain)
        torch.testing.assert_close(samplers.predict_noise(tiny, x, time, context, 3.0), without + 3 * (plain - without))
