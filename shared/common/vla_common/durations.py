"""A duration in words, as programs tell how long something takes."""


def show_seconds(seconds: float | None) -> str:
    """Returns a duration as a person says it: "40 s", "3 min 05 s", "2 h 10 min"."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
