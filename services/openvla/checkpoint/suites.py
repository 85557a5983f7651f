"""LIBERO's suites, and the keys of their statistics in OpenVLA's checkpoints."""

from __future__ import annotations

from collections.abc import Iterable

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")


def keys_of(suite: str) -> tuple[str, str]:
    """Return the possible keys of a suite's statistics, the preferred one first."""
    return suite, f"{suite}_no_noops"


def suites_of(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the suites of statistics' keys; empty for a checkpoint of other data."""
    keys = set(keys)
    return tuple(suite for suite in SUITES if keys & set(keys_of(suite)))
