"""Statistics of columns and images, as LeRobot and GR00T store them in a data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

NAMES = ("mean", "std", "min", "max", "q01", "q99")  # GR00T computes all again if a column has not all of them
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}  # in LeRobot v3.0
MAX_IMAGES = 100  # of a video, for its statistics
Statistics = dict[str, dict[str, np.ndarray]]  # feature -> name -> float64 [n]

# Tolerances between a stored statistic and the rows'. LeRobot computes in float32, std as the root of a difference of
# squares, and quantiles from histograms of 5,000 bins; GR00T computes all six in float32.
RANGE_SHARE = 1e-3  # of a column's range
QUANTILE_SHARE = 0.02  # of the distance from q01 to q99
ROUNDING = 1e-5  # of a column's largest number
ROWS_BEYOND = 0.02  # share of the rows allowed beyond q01 or q99: twice the nominal share


def as_rows(values: np.ndarray) -> np.ndarray:
    """Return [T, …] as [T, n]; T and n may be 0."""
    return values.reshape(len(values), int(np.prod(values.shape[1:])))


def of_column(values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the six statistics, float64 [n], of [T] or [T, n] numbers, computed in float64."""
    rows = as_rows(np.asarray(values, np.float64))
    low, high = np.quantile(rows, (0.01, 0.99), axis=0)
    moments = {"mean": rows.mean(0), "std": rows.std(0), "min": rows.min(0), "max": rows.max(0)}
    return moments | {"q01": low, "q99": high}


def of_episode(values: np.ndarray) -> dict[str, np.ndarray]:
    """Return a column's [T, …] entry of episodes_stats.jsonl: no quantiles, and the number of rows."""
    stats = of_column(values)
    return {name: stats[name] for name in ("min", "max", "mean", "std")} | {"count": np.array([len(values)])}


def of_rows(values: np.ndarray) -> dict[str, np.ndarray]:
    """Return a column's [T, …] statistics in LeRobot v3.0, float64 [n]: with five quantiles and the number of rows."""
    rows = as_rows(np.asarray(values, np.float64))
    quantiles = dict(zip(QUANTILES, np.quantile(rows, list(QUANTILES.values()), axis=0), strict=True))
    return of_column(values) | quantiles | {"count": np.array([len(values)])}


def of_episodes(episodes: Iterable[Mapping[str, np.ndarray]]) -> Statistics:
    """Return the statistics of every column of numbers over all episodes' rows."""
    return {name: of_column(rows) for name, rows in all_rows(episodes).items()}


def all_rows(episodes: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return every column of numbers, [N, …], over all episodes' rows."""
    gathered: dict[str, list[np.ndarray]] = {}
    for columns in episodes:
        for name, values in columns.items():
            if values.dtype != object and len(values):
                gathered.setdefault(name, []).append(values)
    return {name: np.concatenate(parts) for name, parts in gathered.items()}


def departures(column: str, stated: Mapping[str, Any], rows: np.ndarray) -> Iterator[tuple[str, bool]]:
    """Yield, for each stored statistic that differs from the rows [N, …], a text with the number that differs most, and
    whether that is grave: not for a quantile that is only wider than the rows need. LeRobot sets merged since August
    2026 have such: the outermost of their parts' quantiles.

    Raises ValueError if a statistic has another length than the column.
    """
    actual, rows = of_column(rows), as_rows(np.asarray(rows, np.float64))
    low, high = actual["min"], actual["max"]
    size = np.maximum(np.abs(low), np.abs(high))
    room = RANGE_SHARE * np.maximum(high - low, 1e-6) + ROUNDING * size
    for name in sorted(stated.keys() & actual.keys()):
        try:
            values = np.asarray(stated[name], np.float64).ravel()
        except (TypeError, ValueError):
            values = np.array([np.nan])
        if values.shape != low.shape:
            raise ValueError(f"{column}: {name} has {len(values)} numbers; expected {len(low)}")
        allowed = room
        if name == "std":
            allowed = room + RANGE_SHARE * size
        if name in ("q01", "q99"):
            allowed = room + QUANTILE_SHARE * (actual["q99"] - actual["q01"])
        off = np.abs(values - actual[name])
        departs = ~(off <= allowed)
        grave = departs
        if name in ("q01", "q99"):
            beyond = (rows < values - room if name == "q01" else rows > values + room).sum(0)
            is_outside = ~((low - room <= values) & (values <= high + room))
            grave = departs & ((beyond > max(1, ROWS_BEYOND * len(rows))) | is_outside)
        if departs.any():
            reported = grave if grave.any() else departs
            index = int(np.argmax(np.where(reported, np.where(np.isfinite(off), off, np.inf) / allowed, -1)))
            stated_number, number = float(values[index]), float(actual[name][index])
            text = f"{column}: {name}[{index}] is {stated_number:.6g}; the rows' is {number:.6g}"
            yield text, bool(grave.any())


def of_images(images: np.ndarray) -> dict[str, np.ndarray]:
    """Return mean, std, min and max per colour, [3, 1, 1] in 0…1, and the count of images, of uint8 [T, H, W, 3]."""
    return without_quantiles(of_levels(*levels_of(images)))


def without_quantiles(stats: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return statistics as versions before v3.0 have them."""
    return {name: values for name, values in stats.items() if name not in QUANTILES}


def levels_of(images: np.ndarray) -> tuple[np.ndarray, int]:
    """Return how often each colour has each level, int64 [3, 256], in a sample of images; and the sample's size."""
    indices = np.linspace(0, len(images) - 1, min(len(images), MAX_IMAGES)).round().astype(int)
    sampled = images[indices]
    return np.stack([np.bincount(sampled[..., colour].ravel(), minlength=256) for colour in range(3)]), len(indices)


def of_levels(counts: np.ndarray, images: int) -> dict[str, np.ndarray]:
    """Return the statistics of images from `levels_of`, [3, 1, 1] in 0…1: with quantiles and the count of images."""
    levels, totals = np.arange(256) / 255, counts.sum(1, keepdims=True)
    shares = counts / totals
    mean = shares @ levels
    stats = {"mean": mean, "std": np.sqrt(np.maximum(0, shares @ levels**2 - mean**2))}
    stats |= {"min": levels[(counts > 0).argmax(1)], "max": levels[255 - (counts[:, ::-1] > 0).argmax(1)]}
    cumulated = counts.cumsum(1)
    stats |= {name: levels[(cumulated >= share * totals).argmax(1)] for name, share in QUANTILES.items()}
    return {name: values.reshape(3, 1, 1) for name, values in stats.items()} | {"count": np.array([images])}


def plain(statistics: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, dict[str, list]]:
    """Return statistics as JSON values."""
    return {key: {name: np.asarray(values).tolist() for name, values in of.items()} for key, of in statistics.items()}
