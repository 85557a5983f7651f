"""Suspicions about instructions: those of another task than the one that the episode shows."""

from __future__ import annotations

from collections import Counter

import numpy as np

from vla_datasets.audit.findings import DatasetAudit
from vla_datasets.audit.samples import Sample
from vla_datasets.dataset import Dataset

NEIGHBOURS = 5  # episodes most like one, which vote on its sentence
MIN_AGREEMENT = 0.9  # share of the other episodes whose neighbours have their sentence, for the votes to count
KIND = "sentences exchanged"


def check(dataset: Dataset, samples: list[Sample], result: DatasetAudit) -> None:
    """Add the suspicions about instructions: by the simulated tasks where the set names them, else by likeness."""
    sentences = [" or ".join(sample.episode.tasks[:1]) for sample in samples]
    if len(set(sentences)) < 2:
        return
    simulated = (dataset.source or {}).get("episodes") or []
    recorded = [simulated[sample.index] if sample.index < len(simulated) else {} for sample in samples]
    if all("instruction" in entry for entry in recorded):
        pairs = zip(samples, sentences, recorded, strict=True)
        wrong = [(sample, text, of["instruction"]) for sample, text, of in pairs if text != of["instruction"]]
        for text, task in dict.fromkeys((text, task) for _, text, task in wrong):
            found = [sample.index for sample, *other in wrong if other == [text, task]]
            result.add(KIND, "task_index", found, f"the sentence is '{text}', but the simulator ran '{task}'")
        return
    result.cannot_tell.append("whether all sentences of two tasks are exchanged: no simulator recorded its tasks")
    _neighbours(samples, sentences, result)


def _neighbours(samples: list[Sample], sentences: list[str], result: DatasetAudit) -> None:
    """Add episodes whose motion and images are those of another sentence's episodes."""
    away = np.zeros((len(samples), len(samples)))
    features = []
    if samples[0].state is not None:
        states = np.stack([sample.state[sample.steps] for sample in samples])
        scale = states.std((0, 1))
        features.append(states[..., scale > 0] / scale[scale > 0])
    for camera in samples[0].images:
        features.append(np.stack([sample.images[camera][-1] - sample.images[camera][0] for sample in samples]))
    for feature in features:
        flat = feature.reshape(len(samples), -1).astype(np.float64)
        squares = (flat**2).sum(1)
        distance = np.sqrt(np.maximum(squares[:, None] + squares - 2 * flat @ flat.T, 0))
        away += distance / max(float(np.median(distance)), 1e-12)
    np.fill_diagonal(away, np.inf)
    sizes, votes = Counter(sentences), []
    for number, text in enumerate(sentences):
        nearest = np.argsort(away[number])[: max(1, min(NEIGHBOURS, sizes[text] - 1))]
        votes.append(Counter(sentences[other] for other in nearest))
    best = [vote.most_common(1)[0][0] for vote in votes]
    odd = [text not in vote and len(vote) == 1 < vote.total() - 1 for vote, text in zip(votes, sentences, strict=True)]
    agreeing = sum(text == other for text, other in zip(sentences, best, strict=True))
    if agreeing < max(MIN_AGREEMENT * (len(samples) - sum(odd)), 0.7 * len(samples)):
        result.cannot_tell.append("whether single episodes have another's sentence: tasks do not differ enough")
        return
    for number in np.flatnonzero(odd):
        evidence = f"the sentence is '{sentences[number]}', but the episodes most like it have '{best[number]}'"
        result.add(KIND, "task_index", [samples[number].index], evidence)
