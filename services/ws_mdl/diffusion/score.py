"""Measure the quality of samples: `python -m services.ws_mdl.diffusion.score`.

A small classifier, trained on the real images, measures how often a sample has the requested class. On its features the
Fréchet distance compares two sets of images (Heusel et al. 2017, with this classifier instead of Inception, which is
not trained on 16 × 16 sprites).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor, nn
from torch.nn import functional

from services.ws_mdl.diffusion.config import SampleRequest
from services.ws_mdl.diffusion.config import ScoreRequest as Request
from services.ws_mdl.diffusion.data import LabelledImages, load
from services.ws_mdl.diffusion.sample import sample, steps_of
from services.ws_mdl.diffusion.train import TrainedDiffusion, open_run
from vla_common import entrypoint
from vla_common.volume import Volume, display_path
from vla_modelkit.training.progress import Progress
from vla_modelkit.training.weights import DamagedFileError, load_state

FEATURES = 64
# The compared samplers: fields of a sampling Request.
WAYS: dict[str, dict[str, Any]] = {
    "ddim": {"sampler": "ddim"},
    "ddim, order 2": {"sampler": "ddim", "order": 2, "eta": 1.0, "clip": True, "spacing": 1.5},
    "ddpm": {"sampler": "ddpm"},
    "incorrect": {"sampler": "incorrect"},
}


class Classifier(nn.Module):
    """Classifies images and provides 64 features."""

    def __init__(self, channels: int, classes: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
            nn.Linear(4 * 64, FEATURES), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(FEATURES, classes)

    def features(self, x: Tensor) -> Tensor:
        """Return float32 [n, 64]."""
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # [n, classes]


def train_classifier(
    data: LabelledImages, seed: int = 0, epochs: int = 12, batch_size: int = 64
) -> tuple[Classifier, float]:
    """Train a classifier; return it and its accuracy (0 to 1) on validation images."""
    train, val = data.split(seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = Classifier(data.channels, len(data.classes))
        optim = torch.optim.Adam(classifier.parameters(), lr=2e-3)
        total = epochs * -(-len(train.x) // batch_size)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optim, max_lr=2e-3, total_steps=total)
        classifier.train()
        order = (index for _ in range(epochs) for index in torch.randperm(len(train.x)).split(batch_size))
        with Progress(total) as progress:
            for index in order:
                noisy = train.x[index] + 0.05 * torch.randn_like(train.x[index])  # samples are never as clean as data
                loss = functional.cross_entropy(classifier(noisy), train.labels[index])
                optim.zero_grad()
                loss.backward()
                optim.step()
                schedule.step()
                progress.advance("training the classifier")
    classifier.eval()
    return classifier, accuracy(classifier, val.x, val.labels)


@torch.inference_mode()
def accuracy(classifier: Classifier, x: Tensor, labels: Tensor) -> float:
    """Return the classifier's accuracy (0 to 1)."""
    predicted = torch.cat([classifier(part).argmax(dim=1) for part in x.split(500)])
    return (predicted == labels).float().mean().item()


@torch.inference_mode()
def features(classifier: Classifier, x: Tensor) -> np.ndarray:
    """Return the features of images, float64 [n, 64]."""
    return torch.cat([classifier.features(part) for part in x.split(500)]).double().numpy()


def frechet_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return the Fréchet distance of two sets of features [n, d], taken as normal distributions; 0 for equal ones.

    |μ_a - μ_b|² + tr(Σ_a + Σ_b - 2 (Σ_a Σ_b)^½); the root's trace is that of (√Σ_a Σ_b √Σ_a)^½, which is symmetric.
    """
    if min(len(a), len(b)) < 2:
        raise ValueError(f"sets of {len(a)} and {len(b)} images; expected at least 2 each")
    cov_a, cov_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    values, vectors = np.linalg.eigh(cov_a)
    root_a = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    root_trace = np.sqrt(np.linalg.eigvalsh(root_a @ cov_b @ root_a).clip(min=0)).sum()
    distance = ((a.mean(axis=0) - b.mean(axis=0)) ** 2).sum() + np.trace(cov_a) + np.trace(cov_b) - 2 * root_trace
    return float(max(distance, 0.0))


def frechet_of_sets(real: np.ndarray, sampled: np.ndarray, size: int, seed: int = 0) -> float:
    """Return the mean distance of as many disjoint sets of `size` rows as `found` has, drawn at random.

    A distance of few pictures is larger than one of many, so two of them compare at equal numbers only.
    """
    order = np.random.default_rng(seed).permutation(len(sampled))
    sets = order[: len(order) // size * size].reshape(-1, size)
    return float(np.mean([frechet_distance(real, sampled[rows]) for rows in sets]))


def classifier_for(run: TrainedDiffusion, data: LabelledImages) -> tuple[Classifier, float]:
    """Return the run's classifier: the one stored beside its weights, else a new one, which is stored."""
    path = run.directory / "classifier.pt"
    classifier = Classifier(data.channels, len(data.classes))
    if path.exists():
        try:
            state = load_state(path)
            classifier.load_state_dict(state["model_state_dict"])
            return classifier.eval(), state["accuracy"]
        except (DamagedFileError, KeyError, RuntimeError):
            print(f"{path} is not a classifier for these images; training another", file=sys.stderr)
    classifier, val_accuracy = train_classifier(data)
    torch.save({"model_state_dict": classifier.state_dict(), "accuracy": val_accuracy}, path)
    return classifier, val_accuracy


def score(request: Request, run: TrainedDiffusion, data: LabelledImages) -> dict[str, Any]:
    """Return accuracy per class and Fréchet distance to the real images for each sampler."""
    classifier, classifier_accuracy = classifier_for(run, data)
    train, val = data.split()
    real, true = features(classifier, train.x), features(classifier, val.x)
    size = min(request.count, len(true))  # distances of sets of this size compare
    requests = {}
    for name, sampler in WAYS.items():
        if request.ddpm or sampler["sampler"] == "ddim":
            steps = min(request.steps, run.schedule.timesteps) if sampler["sampler"] == "ddim" else None
            has_context = run.config.context and sampler["sampler"] != "incorrect"
            context = {"context": "all", "guidance": request.guidance} if has_context else {}
            requests[name] = SampleRequest(**sampler, steps=steps, **context, count=request.count, seed=request.seed)
    samplers: dict[str, dict[str, Any]] = {}
    with Progress(
        sum(steps_of(request, run) for request in requests.values()), long="--count 100 takes less"
    ) as progress:
        for name, sample_request in requests.items():
            started = time.perf_counter()
            x = sample(sample_request, run, on_step=progress.step_of(name))[0].cpu().clamp(-1, 1)
            seconds, sampled = time.perf_counter() - started, features(classifier, x)
            samplers[name] = {
                "seconds": seconds,
                "frechet": frechet_distance(real, sampled),
                "frechet_equal_count": frechet_of_sets(real, sampled, size),
            }
            if sample_request.context:
                labels = torch.arange(sample_request.count) * len(run.classes) // sample_request.count
                samplers[name]["accuracy"] = accuracy(classifier, x, labels)
                samplers[name]["accuracy_per_class"] = {
                    kind: accuracy(classifier, x[labels == k], labels[labels == k])
                    for k, kind in enumerate(run.classes)
                }
    return {
        "run": run.config.name,
        "epochs": run.epochs,
        "count": request.count,
        "classifier_accuracy": classifier_accuracy,
        "equal_count": size,
        "frechet_of_held_out_pictures": frechet_of_sets(real, true, size),
        "samplers": samplers,
    }


def show(result: dict[str, Any]) -> str:
    """Format the result as a table."""
    lines = [
        f"run {result['run']} after {result['epochs']} epochs, {result['count']} images per sampler",
        f"classifier: {100 * result['classifier_accuracy']:.1f} % accuracy on held-out real images",
        f"{'':<14}{'Fréchet':>9}{'of ' + str(result['equal_count']):>9}{'accuracy':>10}{'seconds':>9}",
        f"{'real':<14}{'-':>9}{result['frechet_of_held_out_pictures']:>9.2f}",
    ]
    for name, result_of in result["samplers"].items():
        accuracy_text = f"{100 * result_of['accuracy']:.1f} %" if "accuracy" in result_of else "-"
        lines.append(
            f"{name:<14}{result_of['frechet']:>9.2f}{result_of['frechet_equal_count']:>9.2f}{accuracy_text:>10}{result_of['seconds']:>9.1f}"
        )
    return "\n".join(lines)


def save_result(directory: Path, result: dict[str, Any]) -> Path:
    """Save the result next to the run's weights."""
    path = directory / "score.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path


def main() -> int:
    """Score; return the exit code."""
    request = tyro.cli(Request, prog="score diffusion", description=__doc__)
    run = open_run(request.name, Volume(), request.device)
    if request.count < 2 * len(run.classes):
        raise ValueError(f"count is {request.count}; expected at least {2 * len(run.classes)}: 2 of each class")
    result = score(request, run, load(run.config.data))
    print(show(result))
    print(display_path(save_result(run.directory, result)))
    return 0


if __name__ == "__main__":
    entrypoint.run(main)
