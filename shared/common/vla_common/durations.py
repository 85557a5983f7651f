"""Durations as text."""


def format_duration(seconds: float | None) -> str:
    """Return a duration as text: "40 s", "3 min 05 s", "2 h 10 min"."""
    if seconds is None:
        return "?"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"
