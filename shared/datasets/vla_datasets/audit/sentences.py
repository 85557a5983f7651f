"""Suspicions about instructions: those of another task than the one that the episode shows."""

from __future__ import annotations

from collections import Counter

import numpy as np

from vla_datasets.audit.findings import DatasetAudit
from vla_datasets.audit.samples import Sample
from vla_datasets.dataset import Dataset

MIN_OTHERS = 2  # other episodes of a sentence to compare with
MIN_GAIN = 1.2  # how many times nearer another sentence's episodes must be
MAX_SHARE = 0.2  # of the episodes: more are not a fault, but tasks that differ little
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
    if not all(sample.state.size and sample.images for sample in samples):
        result.cannot_tell.append("whether single episodes have another task's sentence: it takes states and images")
        return
    _likeness(samples, sentences, result)


def _likeness(samples: list[Sample], sentences: list[str], result: DatasetAudit) -> None:
    """Add episodes whose motion and change of images are nearer to the mean of another sentence's episodes."""
    states = np.stack([sample.state[sample.steps] for sample in samples])
    scale = states.std((0, 1))
    features = [states[..., scale > 0] / scale[scale > 0]]
    for camera in samples[0].images:
        features.append(np.stack([sample.images[camera][-1] - sample.images[camera][0] for sample in samples]))
    centred = [feature.reshape(len(samples), -1) - feature.reshape(len(samples), -1).mean(0) for feature in features]
    vectors = np.concatenate([of / max(np.sqrt((of**2).sum(1).mean()), 1e-9) for of in centred if of.size], axis=1)
    labels, texts = np.array(sentences), [text for text, count in Counter(sentences).items() if count > MIN_OTHERS]
    away = np.full((len(samples), len(texts)), np.inf)  # from the mean of a sentence's other episodes
    for column, text in enumerate(texts):
        for number in range(len(samples)):
            others = (labels == text) & (np.arange(len(samples)) != number)
            away[number, column] = np.linalg.norm(vectors[number] - vectors[others].mean(0))
    is_own = labels[:, None] == np.array(texts)
    own, rival = np.where(is_own, away, np.inf).min(1, initial=np.inf), np.where(is_own, np.inf, away)
    known = np.isfinite(own) & np.isfinite(rival.min(1, initial=np.inf))
    gain = np.divide(own, rival.min(1, initial=np.inf), out=np.zeros(len(samples)), where=known)
    if not known.any() or (gain > MIN_GAIN).mean() > MAX_SHARE:
        result.cannot_tell.append("whether single episodes have another task's sentence: tasks do not differ enough")
        return
    for number in np.flatnonzero(gain > MIN_GAIN):
        other = texts[int(rival[number].argmin())]
        text = f"the sentence is '{sentences[number]}'; it is {gain[number]:.1f} times more like those of '{other}'"
        result.add(KIND, "task_index", [samples[number].index], text)
