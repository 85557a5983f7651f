"""Statistics of a file against those of the rows: wrong ones are refused with both numbers, rounded ones are not."""

import json

import numpy as np
import pytest

from tests import data_sets
from vla_datasets import libero, metadata, program, statistics
from vla_datasets.checks import faults
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.writing import Writer

PART = 400  # rows of each of the two sets that were merged


def by_histogram(parts, share, bins=5000):
    """Return a quantile as LeRobot estimates it: one histogram over all parts, made wider when a part's range is."""
    low, high = parts[0].min(), parts[0].max()
    edges, counts = np.linspace(low - 1e-10, high + 1e-10, bins + 1), np.zeros(bins)
    for part in parts:
        if part.min() < low or part.max() > high:
            low, high = min(low, part.min()), max(high, part.max())
            wider = np.linspace(low, high, bins + 1)
            centres = (edges[:-1] + edges[1:]) / 2
            places = np.clip(np.searchsorted(wider, centres) - 1, 0, bins - 1)
            edges, counts = wider, np.bincount(places, counts, bins)
        counts += np.histogram(part, edges)[0]
    totals = np.cumsum(counts)
    at = int(np.searchsorted(totals, share * totals[-1]))
    if at == 0 or at >= bins:
        return edges[0 if at == 0 else -1]
    return edges[at] + (share * totals[-1] - totals[at - 1]) / max(counts[at], 1) * (edges[at + 1] - edges[at])


def by_lerobot(parts):
    """Return a column's statistics as LeRobot computes them: in float32, the std from the mean of the squares."""
    parts = [part.astype(np.float32) for part in parts]
    rows = np.concatenate(parts)
    mean, squares = (np.float32(np.mean(values, dtype=np.float32)) for values in (rows, rows**2))
    moments = {"mean": mean, "std": np.sqrt(max(np.float32(0), squares - mean**2)), "min": rows.min()}
    moments |= {"max": rows.max(), "q01": by_histogram(parts, 0.01), "q99": by_histogram(parts, 0.99)}
    return {name: [float(value)] for name, value in moments.items()}


def columns(seed):
    """Return parts of columns as robots have them, by what is hard about each."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(50, 400, 30)
    walk = [np.cumsum(draw.normal(0, 0.02, n)) + draw.uniform(-1, 1) for n in lengths]
    return {
        "a walk from another place in each episode": walk,
        "two ranges": [np.linspace(0, 1, PART), np.linspace(9, 10, PART)],
        "a gripper": [(draw.random(n) > 0.7).astype(float) for n in lengths],
        "a gripper that hardly closes": [(draw.random(n) > 0.995).astype(float) for n in lengths],
        "never moves": [np.full(n, 3.14159) for n in lengths],
        "far from zero": [1000 + part for part in walk],
        "outliers": [np.append(draw.normal(0, 1, n), 500 * draw.normal()) for n in lengths],
        "few rows": [draw.normal(0, 1, 12)],
        "a wide last episode": [*walk, draw.uniform(-50, 50, 20)],
    }


@pytest.mark.parametrize("name", columns(0))
@pytest.mark.parametrize("seed", range(3))
def test_what_lerobot_approximates_is_accepted(name, seed):
    parts = columns(seed)[name]
    rows = np.concatenate(parts).astype(np.float32)
    found = list(statistics.departures(name, by_lerobot(parts), rows))
    assert not any(is_grave for _, is_grave in found) and (
        found == [] or name == "few rows"
    )  # a histogram takes the last one
    exact = {key: value.astype(np.float32) for key, value in statistics.of_column(rows).items()}
    assert list(statistics.departures(name, exact, rows)) == []


@pytest.fixture
def merged(tmp_path):
    """A set merged of two, whose actions go from 0 to 1 in one and from 9 to 10 in the other; LeRobot's average of q01
    and q99 (lerobot#4156).
    """
    features = {libero.STATE: {"dtype": "float32", "shape": [1]}, libero.ACTION: {"dtype": "float32", "shape": [1]}}
    writer = Writer(tmp_path / "merged", "toy", 20, features)
    for low in (0, 9):
        rows = np.linspace(low, low + 1, PART, dtype=np.float32)[:, None]
        writer.add({libero.STATE: rows, libero.ACTION: rows}, {}, "go")
    directory = writer.finish().directory
    change(directory, q01=[(0.01 + 9.01) / 2], q99=[(0.99 + 9.99) / 2])
    return directory


def change(directory, **stated):
    path = directory / metadata.STATS
    found = json.loads(path.read_text())
    found[libero.ACTION] |= stated
    path.write_text(json.dumps(found))


def test_averaged_quantiles_of_a_merged_set_are_refused_with_both_numbers(merged, capsys):
    """0.02 is the hundredth of 800 rows: the 8th of 400 from 0 to 1."""
    with pytest.raises(DatasetError, match=r"action: q01\[0\] is 4\.51; the rows' is 0\.020025") as refused:
        LeRobotDataset(merged).require_current_statistics([libero.ACTION])
    command = f"./lab dataset {merged} --write-stats"
    assert command in str(refused.value)
    assert LeRobotDataset(merged).require_current_statistics([libero.STATE]) == []
    assert any("action: q01[0] is 4.51; the rows' is 0.020025" in str(fault) for fault in faults(merged) if fault.grave)
    change(merged, q01=[0.02])
    with pytest.raises(DatasetError, match=r"action: q99\[0\] is 5\.49; the rows' is 9\.97998"):
        LeRobotDataset(merged).require_current_statistics([libero.ACTION])
    assert program.read(merged, write_stats=True) == 0  # as that command does
    assert LeRobotDataset(merged).require_current_statistics([libero.ACTION]) == [] and faults(merged) == []


@pytest.mark.parametrize(
    ("name", "stated", "actual"),
    [("mean", 4.0, "5"), ("std", 0.3, "4.5093"), ("min", -1.0, "0"), ("max", 12.0, "10"), ("q01", -3.0, "0.0200"),
     ("q99", float("nan"), "9.97998")],
)  # fmt: skip
def test_every_statistic_is_compared(merged, name, stated, actual):
    LeRobotDataset(merged).write_statistics()
    change(merged, **{name: [stated]})
    with pytest.raises(DatasetError) as refused:
        LeRobotDataset(merged).require_current_statistics([libero.ACTION])
    assert f"action: {name}[0] is {stated:g}; the rows' is {actual}" in str(refused.value)


def test_outer_bounds_of_a_merged_set_are_a_note(merged):
    """What LeRobot writes since its #3804: the smallest q01 and the largest q99 of the parts."""
    LeRobotDataset(merged).write_statistics()
    change(merged, q01=[0.0], q99=[10.0])
    assert LeRobotDataset(merged).require_current_statistics([libero.ACTION]) == []
    rows = np.concatenate([np.linspace(0, 1, 9950), np.linspace(9, 10, 50)])
    stated = {"q01": [0.01], "q99": [9.99]}
    ((text, is_grave),) = statistics.departures("action", stated, rows)
    assert not is_grave and text.startswith("action: q99[0] is 9.99; the rows' is 0.9")


def test_episodes_that_are_left_out_are_not_compared(merged):
    """Statistics are of the rows then."""
    dataset = LeRobotDataset(merged)
    dataset.left_out = 1
    assert dataset.require_current_statistics([libero.ACTION]) == []


def test_statistics_that_are_not_there_are_the_rows(merged):
    (merged / metadata.STATS).unlink()
    dataset = LeRobotDataset(merged)
    assert dataset.require_current_statistics([libero.ACTION]) == []
    assert dataset.statistics()["action"]["q01"] == pytest.approx(0.020025, abs=1e-5)


def test_a_set_that_the_lab_wrote_has_its_rows_statistics(tmp_path):
    dataset = data_sets.lerobot(tmp_path / "small")
    assert dataset.require_current_statistics(dataset.column_keys) == []
