"""Data sets: list, contents, an episode's videos and curves, and marks for bad episodes."""
