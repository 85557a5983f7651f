"""Intervals and tests against published values, and against their own definitions."""

from math import log, sqrt

import pytest

from vla_evaluation.report.stats import (
    Rate,
    fisher_exact,
    mcnemar_exact,
    paired_difference,
    paired_score,
    wilson,
)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [  # Newcombe, Statistics in Medicine 17 (1998) 857–872, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_matches_published_examples(successes, trials, low, high):
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)


def test_wilson_is_symmetric_and_bounded():
    for trials in (1, 2, 10, 50, 500):
        for k in range(0, trials + 1, max(1, trials // 10)):
            low, high = wilson(k, trials)
            mirrored = wilson(trials - k, trials)
            assert 0 <= low <= k / trials <= high <= 1
            assert (1 - high, 1 - low) == pytest.approx(mirrored)
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("only_a", "only_b", "p"), [(0, 0, 1.0), (1, 1, 1.0), (0, 5, 0.0625), (12, 2, 0.0129394531), (2, 12, 0.0129394531)]
)
def test_mcnemar_exact(only_a, only_b, p):
    assert mcnemar_exact(only_a, only_b) == pytest.approx(p)


def constrained_log_likelihood(only_a, only_b, pairs, difference, q):
    """The log-likelihood with P(only b) = q and P(only a) = q + difference."""
    rest = 1 - 2 * q - difference
    parts = [(only_a, q + difference), (only_b, q), (pairs - only_a - only_b, rest)]
    if any(p < 0 or (p == 0 and n) for n, p in parts):
        return -float("inf")
    return sum(n * log(p) for n, p in parts if n)


@pytest.mark.parametrize(("only_a", "only_b", "pairs"), [(12, 2, 50), (3, 3, 20), (0, 7, 40), (30, 1, 60)])
def test_paired_score_uses_the_constrained_maximum(only_a, only_b, pairs):
    for difference in (-0.2, -0.05, 0.0, 0.1, 0.3):
        grid = [i / 200_000 for i in range(200_001)]
        lowest = max(0.0, -difference)
        candidates = [q for q in grid[::20] if lowest <= q <= (1 - difference) / 2]
        best = max(candidates, key=lambda q: constrained_log_likelihood(only_a, only_b, pairs, difference, q))
        variance = pairs * (2 * best + difference * (1 - difference))
        expected = (only_a - only_b - pairs * difference) / sqrt(variance)
        assert paired_score(only_a, only_b, pairs, difference) == pytest.approx(expected, rel=2e-3, abs=2e-3)


def test_paired_difference_contains_the_estimate_and_shrinks():
    estimate, low, high = paired_difference(12, 2, 50)
    assert estimate == pytest.approx(0.2)
    assert 0 < low < estimate < high < 0.4  # McNemar's p is 0.013, so zero lies outside
    wide = paired_difference(12, 2, 50, confidence=0.99)
    assert wide[1] < low and high < wide[2]
    assert paired_difference(2, 12, 50) == pytest.approx((-estimate, -high, -low))


def test_paired_difference_of_equal_runs_is_not_degenerate():
    estimate, low, high = paired_difference(0, 0, 20)
    assert estimate == 0 and low < -0.05 and high > 0.05


def test_rate_reads_as_a_sentence():
    assert str(Rate(9, 10)) == "90.0 % (9/10), 95 % 59.6–98.2 %"
    assert str(Rate(0, 0)) == "no episodes"


@pytest.mark.parametrize(
    ("a", "b", "p"),
    [  # scipy 1.17's fisher_exact, two-sided, of [[successes, failures], [successes, failures]]
        ((8, 10), (1, 6), 0.034965034965034975),
        ((100, 102), (1000, 1005), 0.13007593634300163),
        ((2, 9), (8, 10), 0.02301413756522116),
        ((396, 500), (1188, 1500), 1.0),
        ((370, 500), (1188, 1500), 0.017944484954409586),
        ((0, 10), (0, 20), 1.0),
        ((3, 8), (36, 40), 0.003220284191349931),
    ],
)
def test_fisher_exact(a, b, p):
    assert fisher_exact(*a, *b) == pytest.approx(p, rel=1e-9)
    assert fisher_exact(*b, *a) == pytest.approx(p, rel=1e-9)


@pytest.mark.parametrize(("test", "counts"), [(fisher_exact, (1, 2, 3, 2)), (wilson, (3, 2))])
def test_impossible_counts_are_rejected(test, counts):
    with pytest.raises(ValueError, match="3 successes of 2 trials"):
        test(*counts)
