"""Picking an object up and putting it on or in something."""

from __future__ import annotations

from services.libero.oracle.rules import Rule

RULES: tuple[Rule, ...] = ()
