"""All exercises by name."""

from __future__ import annotations

import difflib

from lessons.exercises import NAMES, of_diffusion, of_transformer, of_vla
from lessons.exercises.types import Exercise

EXERCISES: dict[str, Exercise] = {
    one.name: one for one in (*of_transformer.EXERCISES, *of_diffusion.EXERCISES, *of_vla.EXERCISES)
}


def exercise(name: str) -> Exercise:
    """Returns the exercise of that name. Raises ValueError naming those that there are."""
    if name not in EXERCISES:
        close = difflib.get_close_matches(name, NAMES, 1)
        hint = f"; did you mean '{close[0]}'?" if close else "."
        raise ValueError(f"exercise '{name}' not found{hint} Known: {', '.join(NAMES)}")
    return EXERCISES[name]
