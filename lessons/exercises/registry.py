"""All exercises by name."""

from __future__ import annotations

import difflib

from lessons.exercises import NAMES, diffusion_exercises, transformer_exercises, vla_exercises
from lessons.exercises.types import Exercise

EXERCISES: dict[str, Exercise] = {
    exercise.name: exercise
    for exercise in (*transformer_exercises.EXERCISES, *diffusion_exercises.EXERCISES, *vla_exercises.EXERCISES)
}


def exercise(name: str) -> Exercise:
    """Return the exercise of that name. Raises ValueError with the known names."""
    if name not in EXERCISES:
        close = difflib.get_close_matches(name, NAMES, 1)
        hint = f"; did you mean '{close[0]}'?" if close else "."
        raise ValueError(f"exercise '{name}' not found{hint} Known: {', '.join(NAMES)}")
    return EXERCISES[name]
