"""LIBERO's suites as OpenVLA's checkpoints know them: published repositories and statistics' names."""

from __future__ import annotations

from collections.abc import Iterable

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")


def keys_of(suite: str) -> tuple[str, str]:
    """Returns the names under which a checkpoint may keep a suite's statistics, the preferred one first."""
    return suite, f"{suite}_no_noops"


def suites_of(keys: Iterable[str]) -> tuple[str, ...]:
    """Returns the suites that statistics are for; none where a checkpoint was made for something else."""
    keys = set(keys)
    return tuple(suite for suite in SUITES if keys & set(keys_of(suite)))
