"""Statistics of columns and of pictures, as LeRobot and GR00T keep them beside a data set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

NAMES = ("mean", "std", "min", "max", "q01", "q99")  # GR00T's; a column that lacks one has it compute all anew
PICTURES = 100  # of a film that its statistics come from, at most
Statistics = dict[str, dict[str, np.ndarray]]  # feature -> name -> float64 [n]


def of_column(values: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the six statistics, float64 [n], of [T] or [T, n] numbers, computed in float64."""
    rows = np.asarray(values, np.float64).reshape(len(values), -1)
    low, high = np.quantile(rows, (0.01, 0.99), axis=0)
    moments = {"mean": rows.mean(0), "std": rows.std(0), "min": rows.min(0), "max": rows.max(0)}
    return moments | {"q01": low, "q99": high}


def of_episodes(episodes: Iterable[Mapping[str, np.ndarray]]) -> Statistics:
    """Returns the statistics of every column of numbers over all episodes' rows."""
    gathered: dict[str, list[np.ndarray]] = {}
    for columns in episodes:
        for name, values in columns.items():
            if values.dtype != object and len(values):
                gathered.setdefault(name, []).append(values)
    return {name: of_column(np.concatenate(parts)) for name, parts in gathered.items()}


def of_pictures(pictures: np.ndarray) -> dict[str, np.ndarray]:
    """Returns mean, std, min and max per colour, [3, 1, 1] in 0…1, and the count of pictures, of uint8 [T, H, W, 3]."""
    places = np.linspace(0, len(pictures) - 1, min(len(pictures), PICTURES)).round().astype(int)
    chosen, levels = pictures[places], np.arange(256) / 255
    counts = np.stack([np.bincount(chosen[..., colour].ravel(), minlength=256) for colour in range(3)])
    shares = counts / counts.sum(1, keepdims=True)
    mean = shares @ levels
    found = {"mean": mean, "std": np.sqrt(np.maximum(0, shares @ levels**2 - mean**2))}
    found |= {"min": levels[(counts > 0).argmax(1)], "max": levels[255 - (counts[:, ::-1] > 0).argmax(1)]}
    return {name: one.reshape(3, 1, 1) for name, one in found.items()} | {"count": np.array([len(places)])}


def plain(statistics: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, dict[str, list]]:
    """Returns statistics as JSON takes them."""
    return {key: {name: np.asarray(one).tolist() for name, one in of.items()} for key, of in statistics.items()}
