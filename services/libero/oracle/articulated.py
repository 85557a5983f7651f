"""Skills for things that move on joints: drawers, doors, knobs."""

from __future__ import annotations

from services.libero.oracle.rules import Rule

RULES: tuple[Rule, ...] = ()
