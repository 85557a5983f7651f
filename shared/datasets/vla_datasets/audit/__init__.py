"""Faults of meaning in a data set, which its format cannot show: found by what the data says about itself.

Each check compares an episode with the others, or the numbers with the images and with what moved. It reads all
numbers and sixteen images of each video, and reports suspicions: a healthy set can look odd, and a fault in every
episode alike can look healthy.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vla_datasets.audit import images, numbers, sentences
from vla_datasets.audit.findings import DatasetAudit as DatasetAudit
from vla_datasets.audit.findings import Note as Note
from vla_datasets.audit.images import MIN_EPISODES
from vla_datasets.audit.samples import MAX_EPISODES, Sample, read
from vla_datasets.dataset import Dataset
from vla_datasets.loader import open_dataset

KINDS = (
    "cameras swapped", "BGR", "upside down", "black video", "frozen video", "other video", "action delayed",
    "degrees", "gripper range", "zero actions", "sentences exchanged",
)  # fmt: skip


def audit(directory: Path | str, tick: Callable[[int, int], None] = lambda done, of: None) -> DatasetAudit:
    """Return the suspicions about a data set of either layout.

    tick(done, of): called before each episode. Raises DatasetError for a set that cannot be read.
    """
    dataset = open_dataset(directory)
    return audit_samples(dataset, read(dataset, tick))


def audit_samples(dataset: Dataset, samples: list[Sample]) -> DatasetAudit:
    """Return the suspicions about some episodes of a data set."""
    result = DatasetAudit(len(samples))
    if len(samples) == MAX_EPISODES < len(dataset.episodes):
        result.cannot_tell.append(f"anything about other episodes: {MAX_EPISODES} of {len(dataset.episodes)} were read")
    if not dataset.video_keys:
        result.cannot_tell.append("anything about images: the set has none")
    if len(samples) < MIN_EPISODES:
        number = f"{len(samples)} {'is' if len(samples) == 1 else 'are'} too few to compare"
        result.cannot_tell.append(f"whether an episode differs from the others: {number}; {MIN_EPISODES} are enough")
    for check in (numbers.check, images.check, sentences.check):
        check(dataset, samples, result)
    return result
