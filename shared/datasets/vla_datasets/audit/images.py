"""Suspicions about videos: black, frozen, upside down, BGR, of another camera, of another episode."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vla_datasets.audit.findings import DatasetAudit
from vla_datasets.audit.samples import FRAMES, Sample, robust_z, shrink
from vla_datasets.dataset import Dataset

FLAT = 0.012  # spread (0…1) of the pixels of an image without content
COPY = 0.012  # difference (0…1) of two copies of an image, compressed again
MAX_APART = 0.6  # difference of the changes from image to image of two copies, as a share of the changes
MIN_EPISODES = 5  # for comparisons of an episode with the others
MIN_MODEL_EPISODES = 40  # for a model of the state from images
MAX_CONFUSED = 0.08  # share of the episodes whose images may fit another's motion better, for the model to count
STILL_SHARE = 0.1  # of the camera's usual change from image to image: none
MIN_GAIN = 1.8  # how many times better another reading of a video must fit
MIN_Z = 5.0  # and how unusual the video must be as it is, in robust standard deviations
TURNS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "upside down": lambda images: images[:, ::-1],
    "turned by 180°": lambda images: images[:, ::-1, ::-1],
    "red and blue exchanged": lambda images: images[..., ::-1],
}


def check(dataset: Dataset, samples: list[Sample], result: DatasetAudit) -> None:
    """Add the suspicions about videos."""
    usable: dict[str, list[Sample]] = {}
    cameras = [key for key in dataset.video_keys if all(key in sample.images for sample in samples)]
    if left := set(dataset.video_keys) - set(cameras):
        result.cannot_tell.append(f"anything about {', '.join(sorted(left))}: not all episodes have readable images")
    for camera in cameras:
        for sample in samples:
            if count := _blank_images(sample, camera):
                text = f"{count} of {FRAMES} images are of one colour"
                result.add("black video", camera, [sample.index], text)
        moving = [sample for sample in samples if not _blank_images(sample, camera)]
        frozen = _frozen(moving, camera, result)
        usable[camera] = [sample for sample in moving if sample.index not in frozen]
    turned = set().union(*(_layout(usable, camera, result) for camera in cameras))
    indices = [{sample.index for sample in of} - turned for of in usable.values()]
    others = [sample for sample in samples if indices and sample.index in set.intersection(*indices)]
    if len(others) >= MIN_EPISODES:
        _other_video(dataset, others, list(usable), result)


def _blank_images(sample: Sample, camera: str) -> int:
    images = sample.images[camera]
    return int((images.std(axis=(1, 2)).max(axis=1) < FLAT).sum())


def _frozen(samples: list[Sample], camera: str, result: DatasetAudit) -> set[int]:
    """Add videos that stand still while the arm moves; return their episodes."""
    if not samples:
        return set()
    motion = np.stack([sample.motion[camera] for sample in samples])  # [E, FRAMES - 1]
    active = np.ones_like(motion, bool)
    if samples[0].state.size:
        scale = np.concatenate([sample.state for sample in samples]).std(0)
        arm = np.stack([sample.arm_motion(np.where(scale > 0, scale, np.inf)) for sample in samples])
        active = arm > np.median(arm) / 2
    usual = float(np.median(motion[active])) if active.any() else 0.0
    still = active & (motion <= STILL_SHARE * usual) & (usual > 0)
    found = set()
    for number, sample in enumerate(samples):
        if still[number].sum() >= max(4, 0.4 * active[number].sum()):
            moves = f"{still[number].sum()} of the {active[number].sum()} times that the arm moves from image to image"
            result.add("frozen video", camera, [sample.index], f"the image does not change in {moves}")
            found.add(sample.index)
    return found


def _mean_images(samples: list[Sample], camera: str) -> np.ndarray:
    return np.stack([sample.images[camera].mean(0) for sample in samples])


def _distances(images: np.ndarray, references: np.ndarray, same: np.ndarray) -> np.ndarray:
    """Return the mean distance [E] of each image to the tenth of the references nearest to it; not to `same` [E, R]."""
    away = np.abs(images.reshape(len(images), 1, -1) - references.reshape(1, len(references), -1)).mean(2)
    nearest = np.sort(np.where(same, np.inf, away), axis=1)
    return nearest[:, : max(1, round(0.1 * len(references)))].mean(1)


def _layout(usable: dict[str, list[Sample]], camera: str, result: DatasetAudit) -> set[int]:
    """Add videos that resemble the others' once they are turned, or those of another camera; return their episodes."""
    samples = usable[camera]
    if len(samples) < MIN_EPISODES:
        return set()
    indices = np.array([sample.index for sample in samples])
    own = _mean_images(samples, camera)
    distance = _distances(own, own, np.eye(len(own), dtype=bool))
    unusual = robust_z(distance, floor=0.1 * float(np.median(distance)))
    readings = {name: (own, turn(own)) for name, turn in TURNS.items()}
    readings |= {other: (_mean_images(of, other), own) for other, of in usable.items() if other != camera and of}
    gains, found = {}, set()
    for name, (references, turned) in readings.items():
        rows = np.array([sample.index for sample in usable.get(name, samples)])
        gains[name] = distance / np.maximum(_distances(turned, references, indices[:, None] == rows), 1e-6)
    for number in np.flatnonzero(unusual > MIN_Z):
        best = max(gains, key=lambda name: gains[name][number])
        if gains[best][number] > MIN_GAIN:
            kinds = {"red and blue exchanged": "BGR", "turned by 180°": "upside down", "upside down": "upside down"}
            reading = best if best in TURNS else f"as {best}"
            text = f"{reading}, it fits the other episodes {gains[best][number]:.1f} times better"
            result.add(kinds.get(best, "cameras swapped"), camera, [indices[number]], text)
            found.add(int(indices[number]))
    return found


def _other_video(dataset: Dataset, samples: list[Sample], cameras: list[str], result: DatasetAudit) -> None:
    """Add episodes whose images show another episode's motion: by a model of the state from the images."""
    copied = _copies(dataset, samples, cameras, result)
    samples = [sample for sample in samples if sample.index not in copied]
    if len(samples) < MIN_MODEL_EPISODES or not samples[0].state.size:
        needed = f"it takes {MIN_MODEL_EPISODES} episodes with observation.state, unless it is a copy"
        result.cannot_tell.append(f"whether a video is another episode's: {needed}")
        return
    states = np.stack([sample.state[sample.steps] for sample in samples])  # [E, FRAMES, n]
    scale = states.std((0, 1))
    states = states[..., scale > 1e-6] / scale[scale > 1e-6]
    images = [np.stack([sample.images[camera].reshape(FRAMES, -1) for sample in samples]) for camera in cameras]
    predicted = _predict(np.concatenate(images, axis=2), states)
    residual = ((predicted - states) ** 2).mean(1)  # [E, n]
    told = residual.mean(0) < 0.7 * states.var((0, 1))
    if not told.any():
        result.cannot_tell.append("whether a video is another episode's: the images do not tell the arm's state")
        return
    error = ((predicted[:, None, :, told] - states[None, ..., told]) ** 2).mean(2)  # [E of images, E of states, n]
    error = (error / np.median(residual, axis=0)[told]).mean(2)
    own, others = np.diag(error), error + np.diag(np.full(len(error), np.inf))
    gain, rival = own / others.min(1), others.argmin(1)
    if (gain > 1.3).sum() > max(4, MAX_CONFUSED * len(gain)):
        result.cannot_tell.append("whether a video is another episode's, unless it is a copy: they are too much alike")
        return
    exchanged = (rival[rival] == np.arange(len(own))) & (gain * gain[rival] > 1.5)
    exchanged &= np.minimum(gain, gain[rival]) > 1.1
    for number in np.flatnonzero(exchanged | ((gain > 1.5) & (robust_z(own) > MIN_Z))):
        other = samples[rival[number]].index
        text = f"its images fit the motion of episode {other} {gain[number]:.1f} times better than its own"
        result.add("other video", ", ".join(cameras), [samples[number].index], text)


def _squared_distances(rows: np.ndarray) -> np.ndarray:
    """Return the squared distance [n, n] of each two rows [n, p]."""
    squares = (rows**2).sum(1)
    return np.maximum(squares[:, None] + squares - 2 * rows @ rows.T, 0)


def _predict(images: np.ndarray, states: np.ndarray, components: int = 96, folds: int = 5) -> np.ndarray:
    """Return the states [E, FRAMES, n] that kernel ridge regression of images [E, FRAMES, p] predicts, held out."""
    flat = images.reshape(-1, images.shape[-1]).astype(np.float64)
    flat -= flat.mean(0)
    _, vectors = np.linalg.eigh(flat.T @ flat)
    features = flat @ vectors[:, -components:]
    away = _squared_distances(features)
    kernel = np.exp(-away / max(float(np.median(away)), 1e-12))
    fold = np.repeat(np.arange(len(images)) % folds, FRAMES)
    target, predicted = states.reshape(len(flat), -1), np.empty((len(flat), states.shape[-1]))
    for number in range(folds):
        known, middle = fold != number, target[fold != number].mean(0)
        weights = np.linalg.solve(kernel[known][:, known] + 1e-3 * np.eye(known.sum()), target[known] - middle)
        predicted[~known] = kernel[~known][:, known] @ weights + middle
    return predicted.reshape(states.shape)


def _copies(dataset: Dataset, samples: list[Sample], cameras: list[str], result: DatasetAudit) -> set[int]:
    """Add pairs of episodes with the same video; return their episodes. Candidates have the same first image."""
    found = set()
    for camera in cameras:
        first = np.stack([sample.images[camera][0].ravel() for sample in samples]).astype(np.float64)
        away = _squared_distances(first) / first.shape[1]
        np.fill_diagonal(away, np.inf)
        for number in np.flatnonzero(away.min(1) < COPY**2):
            other = int(away[number].argmin())
            pair = [samples[number], samples[other]]
            steps = np.linspace(0, min(sample.episode.length for sample in pair) - 1, FRAMES).round().astype(int)
            images = [shrink(dataset.frames(sample.index, camera, steps)) for sample in pair]
            moves = [np.diff(of, axis=0) for of in images]
            apart = np.abs(moves[0] - moves[1]).mean() / max(np.abs(moves[0]).mean(), 1e-9)
            if apart < MAX_APART and (pair[1].index, pair[0].index, camera) not in found:
                found.add((pair[0].index, pair[1].index, camera))
                text = f"both show the same images: their changes differ by {apart:.0%}"
                result.add("other video", camera, [sample.index for sample in pair], text)
    return {index for first, second, _ in found for index in (first, second)}
