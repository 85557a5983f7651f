"""Demonstrations: episodes recorded for learning, from starts that evaluation never uses."""

from vla_evaluation.recording.demonstrations import Demonstration, Demonstrations, draw

__all__ = ["Demonstration", "Demonstrations", "draw"]
