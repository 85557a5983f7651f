"""Demonstrations: episodes recorded for learning, from starts that evaluation never uses."""

from vla_evaluation.recording.demonstrations import Demonstration, Demonstrations
from vla_evaluation.recording.rendering import draw

__all__ = ["Demonstration", "Demonstrations", "draw"]
