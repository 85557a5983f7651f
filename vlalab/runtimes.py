"""Which runtime runs a service: local processes, or containers."""

from __future__ import annotations

from vlalab.console import LabError, unknown

NAMES = ("auto", "local", "docker")


def choose(name: str = "auto") -> str:
    """Returns the runtime for `name`. Raises LabError for an unknown one, and for docker: its images come later."""
    if name not in NAMES:
        raise LabError(unknown("runtime", name, NAMES))
    if name == "docker":
        raise LabError(
            "runtime 'docker' has no images yet: this version runs every service as local processes, from the same "
            "locks and the same compose.yaml; use --runtime local (or auto)"
        )
    return "local"
