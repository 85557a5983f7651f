"""The VAE lab: its bound against torch.distributions, collapse and cures, training that goes on, diffusion's bound."""

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from services.ws_mdl.diffusion.data import LabelledImages, load
from services.ws_mdl.diffusion.schedule import SCHEDULES, linear_schedule, perturb_input
from services.ws_mdl.practice import diffusion_bound, vae
from services.ws_mdl.practice.vae import (
    VAE,
    Config,
    Posterior,
    active_numbers,
    kl_to_standard_normal,
    latent_map,
    negative_log_normal,
    objective,
)
from tests.ws_mdl.practice import trained_to_end
from vla_modelkit.training.machine import TrainingMachine

CPU = TrainingMachine(torch.device("cpu"))


@pytest.fixture(scope="module")
def digits():
    return load("digits")


@pytest.fixture(scope="module")
def few(digits):
    return LabelledImages("digits", digits.x[:60], digits.labels[:60], digits.classes)


def run_of(data, **changes):
    sizes = {"width": 8, "latent": 4, "batch_size": 20, "epochs": 2, "device": "cpu", "warmup": 0}
    return vae.get_training(Config(**{**sizes, **changes}), CPU, data=data)


def trained(data, **changes):
    run = run_of(data, **changes)
    trained_to_end(run)
    return run


def some_posterior(n=5, latent=3):
    generator = torch.Generator().manual_seed(0)
    return Posterior(*(torch.randn(n, latent, generator=generator) for _ in range(2)))


def test_the_kl_is_torchs_and_never_below_zero():
    q = some_posterior(200)
    expected = kl_divergence(Normal(q.mean, (0.5 * q.log_var).exp()), Normal(0.0, 1.0))
    found = kl_to_standard_normal(q)
    torch.testing.assert_close(found, expected)
    assert (found >= 0).all()
    assert torch.equal(kl_to_standard_normal(Posterior(torch.zeros(2, 3), torch.zeros(2, 3))), torch.zeros(2, 3))


def test_the_density_is_torchs():
    x, mean, sigma = torch.randn(2, 1, 4, 4), torch.randn(2, 1, 4, 4), torch.tensor(0.3)
    expected = -Normal(mean, sigma).log_prob(x).flatten(1).sum(dim=1)
    torch.testing.assert_close(negative_log_normal(x, mean, sigma), expected)


def test_shapes_and_the_bound_is_below_the_density_of_a_vae_whose_density_is_known():
    """A decoder that ignores z has log p(x) = log N(x; mean, σ²): the bound is that less the KL."""
    torch.manual_seed(0)
    model = VAE(1, 16, 4, 3, sigma=0.5)
    torch.nn.init.zeros_(model.decoder.body[0].weight)
    x, noise = torch.rand(6, 1, 16, 16), torch.randn(6, 3)
    bound = model.bound(x, noise)
    assert bound.reconstruction.shape == bound.kl.shape == (6,) and bound.kl_by_number.shape == (6, 3)
    assert model(x).shape == model.sample(noise).shape == (6, 1, 16, 16)
    log_p = -negative_log_normal(x, model.decoder(torch.zeros(6, 3)), torch.tensor(0.5))
    torch.testing.assert_close(-bound.negative_elbo, log_p - bound.kl)
    assert (-bound.negative_elbo < log_p).all()


def test_what_a_nat_costs():
    torch.manual_seed(0)
    model = VAE(1, 16, 4, 3, sigma=0.5)
    bound = model.bound(torch.rand(6, 1, 16, 16), torch.randn(6, 3))
    kl, reconstruction = bound.kl.mean(), bound.reconstruction.mean()
    torch.testing.assert_close(objective(bound), reconstruction + kl)
    torch.testing.assert_close(objective(bound, 0.25), reconstruction + 0.25 * kl)
    torch.testing.assert_close(objective(bound, 1.0, 10.0), reconstruction + 30.0)  # all three below what is free


def test_annealing_rises_in_a_line(few):
    run = run_of(few, epochs=4, anneal=0.5, beta=3.0)  # 3 batches an epoch, 54 pictures learned from
    weights = []
    for _ in range(12):
        weights.append(run.kl_weight())
        run.step(torch.arange(4))
    assert weights == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0, 2.5, *[3.0] * 6])
    assert run_of(few).kl_weight() == 1.0


def test_collapse_is_shown_and_cured(digits):
    """With σ = 4 no component of the digits is worth its nats; a learned σ, or free nats, bring the numbers back."""
    some = LabelledImages("digits", digits.x[:900], digits.labels[:900], digits.classes)
    size = {"width": 8, "latent": 8, "epochs": 16, "batch_size": 50}
    lost = trained(some, sigma=4.0, **size).measure()
    assert lost["active"] == 0 and lost["KL"] < 0.1
    free = trained(some, sigma=4.0, free_nats=0.5, **size).measure()
    assert free["active"] >= 4 and free["KL"] > 2
    cured = trained(some, **size).measure()
    assert cured["active"] == 8 and cured["KL"] > 5 and cured["ELBO"] > lost["ELBO"] + 300


def test_numbers_that_do_not_vary_are_not_active():
    mean = torch.stack([torch.linspace(-1, 1, 9), torch.full((9,), 5.0), torch.linspace(-0.05, 0.05, 9)], dim=1)
    assert active_numbers(Posterior(mean, torch.zeros(9, 3))) == 1


# --- quality ------------------------------------------------------------------------------------------------


def test_a_latent_map_goes_from_corner_to_corner():
    z = latent_map(lambda z: z, side=5)
    assert z.shape == (25, 2) and torch.allclose(z[12], torch.zeros(2), atol=1e-6)
    assert z[0].tolist() == pytest.approx([-1.96, 1.96], abs=0.001)  # 95 % of a normal distribution
    assert z[24].tolist() == pytest.approx([1.96, -1.96], abs=0.001)


def posterior(schedule, x0, x, t):
    """Return mean and variance of q(x_{t-1} | x_t, x_0), for t from 2 (Ho et al., equations 6 and 7)."""
    b, a = schedule.b_t[t].double(), schedule.a_t[t].double()
    left, before = schedule.ab_t[t].double(), schedule.ab_t[t - 1].double()
    mean = before.sqrt() * b / (1 - left) * x0 + a.sqrt() * (1 - before) / (1 - left) * x
    return mean, (1 - before) / (1 - left) * b


def mean_of_step(schedule, x, t, pred_noise):
    """Return the mean of p(x_{t-1} | x_t) where that is the noise in x (equation 11)."""
    b, a, left = schedule.b_t[t].double(), schedule.a_t[t].double(), schedule.ab_t[t].double()
    return (x - b / (1 - left).sqrt() * pred_noise) / a.sqrt()


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("t", [2, 7, 20])
def test_a_term_of_the_bound_is_the_weighted_error_of_the_noise(name, t):
    schedule = SCHEDULES[name](20)
    generator = torch.Generator().manual_seed(0)
    x0, noise, guess = (torch.randn(1, 1, 4, 4, generator=generator).double() for _ in range(3))
    x = perturb_input(schedule, x0, torch.tensor([t]), noise).double()
    mean, variance = posterior(schedule, x0, x, t)
    spread = variance.sqrt()
    theirs = Normal(mean_of_step(schedule, x, t, guess), spread)
    expected = kl_divergence(Normal(mean, spread), theirs).sum()
    found = diffusion_bound.weights(schedule)[t] * (noise - guess).pow(2).sum()
    assert float(found) == pytest.approx(float(expected), rel=1e-3)


def test_the_first_term_and_the_prior_are_densities():
    schedule = linear_schedule(20, 0.01, 0.2)
    generator = torch.Generator().manual_seed(0)
    x0 = torch.randn(3, 1, 4, 4, generator=generator)
    seen = {}

    def predict(x, t):
        seen[t] = x
        return torch.zeros_like(x)

    found = diffusion_bound.terms(predict, schedule, x0, [1])
    mean = mean_of_step(schedule, seen[1], 1, torch.zeros_like(x0))
    log_p = Normal(mean, schedule.b_t[1].double().sqrt()).log_prob(x0.double()).sum() / 3
    assert float(found.nats[0]) + found.constant == pytest.approx(float(-log_p), rel=1e-3)
    left = schedule.ab_t[-1]
    prior = kl_divergence(Normal(left.sqrt() * x0, (1 - left).sqrt()), Normal(0.0, 1.0)).sum() / 3
    assert found.prior == pytest.approx(float(prior), rel=1e-3)


def test_the_bound_counts_early_steps_for_more_than_the_simple_loss():
    weights = diffusion_bound.weights(linear_schedule(500))
    assert float(weights[2] / weights[300]) == pytest.approx(88.4, rel=0.01)  # 0.643 against 0.00727
    errors = torch.ones(500, dtype=torch.float64)
    terms = diffusion_bound.Terms(torch.arange(1, 501), errors, weights[1:], 256, 0.0, 0.0)
    assert terms.simple == 1.0 and terms.share(terms.error, 25) == pytest.approx(0.05)
    assert terms.share(terms.nats, 25) == pytest.approx(0.41, abs=0.02)


def test_the_noising_strip_goes_from_the_image_to_noise(digits):
    schedule, x = linear_schedule(500), digits.x[0]
    strip = diffusion_bound.strip(schedule, x, [0, 50, 200, 500])
    assert strip.shape == (4, 1, 16, 16) and torch.equal(strip[0], x)
    with_x = [abs(float(torch.corrcoef(torch.stack([x.flatten(), one.flatten()]))[0, 1])) for one in strip]
    assert with_x[0] > with_x[1] > with_x[2] and with_x[3] < 0.3


def test_the_free_density_of_a_pixel():
    model = VAE(1, 16, 4, 2, sigma=2.0)
    assert float(model.decoder.sigma) == pytest.approx(2.0) and not model.decoder.log_sigma.requires_grad
    assert float(VAE(1, 16, 4, 2).decoder.sigma) == pytest.approx(math.exp(-1))
