"""Demonstrations: episodes recorded for learning, from starts that evaluation never uses."""

from vla_evaluation.recording.drawing import draw
from vla_evaluation.recording.reading import Demonstration, Demonstrations

__all__ = ["Demonstration", "Demonstrations", "draw"]
