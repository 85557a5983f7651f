"""A VAE and a diffusion model on the same digits and the same CPU seconds: distance, sharpness, collapse, the bound."""

from __future__ import annotations

import time

import torch
from torch import Tensor
from torch.nn import functional

from bench.common import figure, replace_attributes
from bench.parts.practice_lstm import CPU, one_thread, trained_for
from services.ws_mdl.diffusion import score
from services.ws_mdl.diffusion import train as diffusion
from services.ws_mdl.diffusion.config import Config as DiffusionConfig
from services.ws_mdl.diffusion.data import Pictures, load
from services.ws_mdl.diffusion.model import ContextUnet, fused_for_sampling
from services.ws_mdl.diffusion.samplers import sample_ddim
from services.ws_mdl.practice import diffusion_bound
from services.ws_mdl.practice.settings import Vae as Config
from services.ws_mdl.practice.vae import get_training, numbers_worth_having

CPU_S = 60.0
SAMPLES = 500
COLLAPSE = {  # σ = 4: a pixel's spread is so wide that no number of z is worth its nats
    "σ learned": {},
    "σ = 4": {"sigma": 4.0},
    "σ = 4, annealed": {"sigma": 4.0, "anneal": 0.7},
    "σ = 4, free nats": {"sigma": 4.0, "free_nats": 0.5},
}
COLLAPSE_EPOCHS = 20
EARLY = 25  # of 500 steps: those with the least noise
LAPLACIAN = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])


def measure_vae(quick: bool) -> list[bool]:
    """Prints all of the section's tables; returns whether each figure meets its target."""
    with one_thread():
        digits = load("digits")
        met = collapse(digits, quick)
        run = trained_for(Config(device="cpu"), lambda config: get_training(config, CPU, data=digits), CPU_S, quick)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            ours = run.averaged.sample(torch.randn(SAMPLES, run.config.latent, generator=generator))
            back = run.averaged(run.held.x).clamp(-1, 1)
        unet, schedule = trained_diffusion(run.data, 2.0 if quick else CPU_S)
        steps = 5 if quick else 20
        theirs, _ = sample_ddim(
            fused_for_sampling(unet), schedule, SAMPLES, steps, seed=0, order=2, eta=1.0, clip=True, spacing=1.5
        )
        met += compared(digits, run.data, {"VAE": ours, "diffusion": theirs.clamp(-1, 1)}, back, run.held)
        return [*met, *simple_loss(unet, schedule, run.held.x[: 16 if quick else 64])]


def collapse(digits: Pictures, quick: bool) -> list[bool]:
    """Trains runs that differ in what a nat of KL is worth; prints what each number of z comes to."""
    print(f"\ncollapse, {COLLAPSE_EPOCHS} epochs each")
    print(
        "  components of the pictures with more variance than σ²: "
        + ", ".join(f"{numbers_worth_having(digits.x, sigma)} for σ = {sigma:g}" for sigma in (0.2, 0.5, 1.0, 2.0, 4.0))
    )
    found = {}
    for name, changes in COLLAPSE.items():
        config = Config(device="cpu", epochs=1 if quick else COLLAPSE_EPOCHS, **changes)
        run = get_training(config, CPU, data=digits)
        index = torch.arange(len(run.data))
        while run.epoch < config.epochs:
            for part in index[torch.randperm(len(index), generator=run.generator)].split(config.batch_size):
                run.step(part)
            run.epoch += 1
        found[name] = run.measure()
        print(f"  {name:<18}" + "  ".join(f"{key} {value:.2f}" for key, value in found[name].items()), flush=True)
    return [
        figure("practice.vae_collapsed_kl", found["σ = 4"]["KL"], "nats", "<=0.1"),
        figure("practice.vae_free_nats_active", found["σ = 4, free nats"]["active"], "numbers", ">=8"),
        figure("practice.vae_learned_sigma_active", found["σ learned"]["active"], "numbers", ">=8"),
    ]


def trained_diffusion(pictures: Pictures, cpu_s: float) -> tuple[ContextUnet, diffusion.Schedule]:
    """Returns the diffusion lab's network, trained for so many CPU seconds on pictures, and its schedule."""
    config = DiffusionConfig(data="digits", n_feat=32, epochs=10_000, ema=0.995, device="cpu", precision="fp32")
    run = diffusion.get_training(config, CPU, pictures)
    started, steps = time.process_time(), 0
    while (spent := time.process_time() - started) < cpu_s:
        # what the falling rate goes by
        replace_attributes(run, epoch=int(config.epochs * spent / cpu_s))
        index = torch.randint(0, len(pictures), (config.batch_size,), generator=run.generator)
        diffusion.train_step(run, index)
        steps += 1
    print(f"diffusion: {spent:.0f} CPU s, {steps * config.batch_size / len(pictures):.1f} epochs", flush=True)
    return run.averaged.eval(), run.schedule


def distance(classifier: score.Classifier, real: Pictures, x: Tensor) -> float:
    """Return the Fréchet distance of images x [n, c, h, h] to the real ones, as `score diffusion` computes it."""
    return score.frechet_distance(score.features(classifier, real.x), score.features(classifier, x.clamp(-1, 1)))


def sharpness(x: Tensor) -> float:
    """Return the mean size of a pixel's difference from its four neighbours' mean; blurred images have less."""
    kernel = (LAPLACIAN / 4).expand(x.shape[1], 1, 3, 3)
    return functional.conv2d(x, kernel, groups=x.shape[1]).abs().mean().item()


def compared(digits: Pictures, learned: Pictures, found: dict[str, Tensor], back: Tensor, held: Pictures) -> list[bool]:
    """Prints distance and sharpness of each model's pictures, and of real ones that no model has seen."""
    with torch.random.fork_rng(devices=[]):
        classifier, accuracy = score.train_classifier(digits)
    print(f"\n{SAMPLES} pictures each; the classifier tells {100 * accuracy:.1f} % of held-out digits right")
    rows = {"held-out digits": held.x, "held-out digits, through the VAE": back, **found}
    far = {}
    for name, x in rows.items():
        far[name] = distance(classifier, learned, x)
        print(f"  {name:<34} Fréchet {far[name]:7.2f}   sharpness {sharpness(x):.3f}")
    return [
        figure("practice.vae_frechet", far["VAE"], "distance", "<=60"),
        figure("practice.diffusion_frechet_over_vae", far["diffusion"] / far["VAE"], "ratio", "<=1"),
        figure("practice.vae_sharpness", sharpness(found["VAE"]) / sharpness(held.x), "of real", "<=1"),
    ]


def simple_loss(unet: ContextUnet, schedule: diffusion.Schedule, x: Tensor) -> list[bool]:
    """Prints the bound's terms of the trained network by step, beside what the simple loss makes of them."""
    terms = diffusion_bound.terms(diffusion_bound.predicted_by(unet, schedule), schedule, x)
    print(
        f"\n-ELBO of {len(x)} held-out digits: {terms.bound:.1f} nats = sum {float(terms.nats.sum()):.1f} "
        f"+ prior {terms.prior:.4f} + constant {terms.constant:.1f}; simple loss {terms.simple:.4f}"
    )
    print("  step   ᾱ/(1-ᾱ)    weight   error/pixel   nats")
    for t in (1, 2, 5, 10, 25, 50, 100, 200, 300, 400, 500):
        k = t - 1
        print(
            f"  {t:4d} {diffusion_bound.signal_to_noise(schedule, t):10.4g} {terms.weight[k]:9.4g} "
            f"{terms.error[k]:12.4f} {terms.nats[k]:8.3f}"
        )
    of_bound, of_simple = terms.share(terms.nats, EARLY), terms.share(terms.error, EARLY)
    print(f"  steps 1 to {EARLY}: {100 * of_bound:.0f} % of the bound, {100 * of_simple:.0f} % of the simple loss")
    return [figure("practice.early_steps_bound_over_simple", of_bound / of_simple, "ratio", ">=2")]
