"""What a service that is up was started with, held against what is asked for now: no setting is dropped unsaid.

A running service shows its settings itself: a local one in the environment of its supervisor (/proc/PID/environ, which
only its user reads), a container in its configuration. So nothing is written down for this, and no token with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from vlalab.description import compose, ports, service_settings

_WHOLE = re.compile(r"\$\{(\w+):?-(.*)\}")  # a value that is one variable, with its default
_PORT = re.compile(r":\d+")
_VARIABLE = re.compile(r"\$\{[^{}]*\}")  # one inside a default


def names_of(service: str) -> set[str]:
    """Return the variables that compose.yaml and compose.gpu.yaml name for a service, but ports of other ones."""
    placed = {ports.port_variable(name) for name in compose.names() if name != service}
    return {name for text in compose.texts(service) for name in re.findall(r"\$\{(\w+)", text)} - placed


def of_container(service: str, environment: Mapping[str, str], command: list[str]) -> dict[str, str]:
    """Return the settings that a container's configuration shows: where one variable makes a whole value of it."""
    written = compose.written(service)
    pairs = [(text, environment[name]) for name, text in written["environment"].items() if name in environment]
    pairs += list(zip(map(str, written.get("command") or ()), command, strict=False))
    whole = [(match, value) for text, value in pairs if (match := _WHOLE.fullmatch(str(text)))]
    values = {match[1]: "" if _is_default(match[2], value) else value for match, value in whole}
    known = names_of(service) - {ports.port_variable(service)}  # it may have been moved, and nobody asked for that
    return {name: value for name, value in values.items() if name in known}


def _is_default(default: str, value: str) -> bool:
    """Return whether a value is a default that follows another variable, as that was then: nobody asked for it."""
    if whole := _WHOLE.fullmatch(default):  # a list of what compose.yaml has, whose ports may have moved since
        return _PORT.sub("", value) == _PORT.sub("", compose.discovered({}).get(whole[1], ""))
    parts = _VARIABLE.split(default)
    return len(parts) > 1 and re.fullmatch(".*".join(map(re.escape, parts)), value) is not None


def differing(service: str, current: Mapping[str, str], requested: Mapping[str, str]) -> list[str]:
    """Return the variables that are requested with another effect than what a service was started with."""
    before = compose.filled(service, current)
    given = {name: requested[name] for name in current if name in requested}
    return sorted(name for name in given if compose.filled(service, {**current, name: given[name]}) != before)


def is_as_wanted(service: str, current: Mapping[str, str], requested: Mapping[str, str]) -> bool:
    """Return whether the settings that are the service's own have the effect they would have with `requested`."""
    own = {name: requested.get(name, "") for name in current if is_own(service, name)}
    return compose.filled(service, {**current, **own}) == compose.filled(service, current)


def is_own(service: str, name: str) -> bool:
    """Return whether a variable is that service's alone."""
    return name.startswith(service_settings.variable(service, ""))
