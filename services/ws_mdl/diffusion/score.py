"""Measure the quality of samples: `python -m services.ws_mdl.diffusion.score`.

A small classifier, trained on the real images, measures how often a sample has the requested class. On its features the
Fréchet distance compares two sets of images (Heusel et al. 2017, with this classifier instead of Inception, which is
not trained on 16 × 16 sprites).
"""

from __future__ import annotations

import json
import sys
import time
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
    total = epochs * -(-len(train.x) // batch_size)
    with torch.random.fork_rng(devices=[]), Progress(total) as progress:
        torch.manual_seed(seed)
        classifier = Classifier(data.channels, len(data.classes))
        optim = torch.optim.Adam(classifier.parameters(), lr=2e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optim, max_lr=2e-3, total_steps=total)
        classifier.train()
        for index in (index for _ in range(epochs) for index in torch.randperm(len(train.x)).split(batch_size)):
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
    """Return the mean distance of random disjoint sets of `size` rows: distances compare at equal numbers only."""
    order = np.random.default_rng(seed).permutation(len(sampled))
    sets = order[: len(order) // size * size].reshape(-1, size)
    return float(np.mean([frechet_distance(real, sampled[rows]) for rows in sets]))


def classifier_for(run: TrainedDiffusion, data: LabelledImages) -> tuple[Classifier, float]:
    """Return the run's classifier and its accuracy: the one stored next to its weights, else a new one."""
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
    real, held_out = features(classifier, train.x), features(classifier, val.x)
    size = min(request.count, len(held_out))  # distances of sets of this size compare
    requests = {}
    for name, way in WAYS.items():
        is_ddim = way["sampler"] == "ddim"
        if request.ddpm or is_ddim:
            steps = min(request.steps, run.schedule.timesteps) if is_ddim else None
            has_context = run.config.context and way["sampler"] != "incorrect"
            context = {"context": "all", "guidance": request.guidance} if has_context else {}
            requests[name] = SampleRequest(**way, steps=steps, **context, count=request.count, seed=request.seed)
    samplers: dict[str, dict[str, Any]] = {}
    total = sum(steps_of(sample_request, run) for sample_request in requests.values())
    with Progress(total, long="--count 100 takes less") as progress:
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
                labels = torch.arange(request.count) * len(run.classes) // request.count
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
        "frechet_of_held_out_pictures": frechet_of_sets(real, held_out, size),
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
    for name, row in result["samplers"].items():
        right = f"{100 * row['accuracy']:.1f} %" if "accuracy" in row else "-"
        distances = f"{row['frechet']:>9.2f}{row['frechet_equal_count']:>9.2f}"
        lines.append(f"{name:<14}{distances}{right:>10}{row['seconds']:>9.1f}")
    return "\n".join(lines)


def main() -> None:
    """Score a run by the command line's flags; print the table and save it next to the weights."""
    request = tyro.cli(Request, prog="score diffusion", description=__doc__)
    run = open_run(request.name, Volume(), request.device)
    if request.count < 2 * len(run.classes):
        raise ValueError(f"count is {request.count}; expected at least {2 * len(run.classes)}: 2 of each class")
    result = score(request, run, load(run.config.data))
    print(show(result))
    path = run.directory / "score.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(display_path(path))


if __name__ == "__main__":
    entrypoint.run(main)
