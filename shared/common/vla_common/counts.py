"""Counts with their noun."""


def plural(number: int, noun: str) -> str:
    """Return "1 episode", "2 episodes", "26,957 steps"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
