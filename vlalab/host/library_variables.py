"""Environment variables that break libraries of the lab's programs, mostly without a message."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from vlalab.host.console import log_info

PROXIES = ("ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")
INTEGER_VARIABLES = (
    "HF_HUB_DOWNLOAD_TIMEOUT",
    "HF_HUB_ETAG_TIMEOUT",
)  # seconds; the hub's library reads them on import
TRANSFER = "HF_HUB_ENABLE_HF_TRANSFER"


def unusable(variables: Mapping[str, str]) -> dict[str, str]:
    """Return unusable variables: name → the problem and its fix.

    Messages contain no value: a proxy's may contain a password.
    """
    reasons = {
        name: f"{name} names a SOCKS proxy, which the lab's programs do not support; set HTTPS_PROXY to an HTTP proxy, "
        f"or unset {name}"
        for name in PROXIES
        if variables.get(name, "").lower().startswith("socks")
    }
    for name in INTEGER_VARIABLES:
        if variables.get(name) and not variables[name].isdecimal():
            reasons[name] = f"{name} is not a whole number of seconds; expected for example {name}=10, or unset {name}"
    if variables.get(TRANSFER, "").upper() in ("1", "ON", "YES", "TRUE"):
        reasons[TRANSFER] = f"{TRANSFER} needs the package hf_transfer, which no environment has; unset {TRANSFER}"
    return reasons


def usable(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without the unusable ones, and report each of these once."""
    reasons = unusable(variables)
    for reason in reasons.values():
        _log_once(f"ignored: {reason}")
    return {name: value for name, value in variables.items() if name not in reasons}


_log_once = functools.cache(log_info)
