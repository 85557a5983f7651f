"""Access to packages, checkpoints and base images; proxies and certificate authorities on the way."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from vlalab.description.compose import ADDRESS
from vlalab.doctor.check import FAIL, Context, Finding, check, fail, ok, skip, warn
from vlalab.doctor.checks.docker import ENGINE
from vlalab.host.library_variables import unusable

INDEX = "pypi.org"
REGISTRY = "https://registry-1.docker.io/v2/"
HUB = "https://huggingface.co"
OFFLINE = ("HF_HUB_OFFLINE", "UV_OFFLINE", "PIP_NO_INDEX")
INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")
CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
MAX_CLOCK_ERROR_S = 300.0  # tokens and certificates allow that much
TRUST = "sudo cp CERTIFICATE.crt /usr/local/share/ca-certificates/ && sudo update-ca-certificates"


@check("network-variables", "variables", FAIL, "unset SSL_CERT_FILE")
def variables(context: Context) -> Finding:
    """An invalid variable breaks downloads, a library, or services with a public address."""
    for name in CERTIFICATES:
        path = context.machine.variables.get(name)
        if path and "-----BEGIN" not in (context.machine.read(path) or "") and not context.machine.names(path):
            return fail(f"{name} names {path}, which is not a readable file of certificates", f"unset {name}")
    try:
        url = ADDRESS.public_url(context.machine.variables)
    except ValueError as error:
        return fail(str(error), f"unset {ADDRESS.VARIABLE}", "correct it in the shell or .env, or")
    if reasons := unusable(context.machine.variables):
        return warn("; ".join(reasons.values()), f"unset {' '.join(reasons)}")
    return ok(f"public address {url}" if url else "none breaks a library")


def _reach(context: Context, url: str, consequence: str) -> Finding:
    variables = context.machine.variables
    if context.offline or any(variables.get(name) in ("1", "true", "yes", "on") for name in OFFLINE):
        return skip("offline mode is on")
    host, response = urlsplit(url).hostname, context.machine.fetch(url)
    if not response.error:
        error_s = abs(context.machine.now() - response.date) if response.date else 0.0
        if error_s > MAX_CLOCK_ERROR_S:
            return fail(f"the clock is {error_s / 60:.0f} min off from that of {host}", "sudo timedatectl set-ntp true")
        return ok(f"{host} answers")
    if "CERTIFICATE" in response.error.upper():
        today = time.strftime("%Y-%m-%d", time.gmtime(context.machine.now()))
        reason = f"this machine does not trust the certificate of {host}"
        return fail(reason, hint=f"if its clock is right ({today}), add your network's authority")
    if proxy := next((name for name in PROXIES if variables.get(name)), ""):
        reason = f"{host} cannot be reached through the proxy of {proxy} ({response.error}): {consequence}"
        return fail(reason, f"unset {proxy}", "correct it, or")
    reason = f"{host} cannot be reached ({response.error}): {consequence}"
    return warn(reason, "./lab restore FILE", "on a machine without a network, restore a bundle")


@check("network-index", "package index", FAIL, TRUST)
def index(context: Context) -> Finding:
    """Packages come from it; with a wrong clock no certificate is valid."""
    mirror = next(filter(None, map(context.machine.variables.get, INDEXES)), f"https://{INDEX}/")
    return _reach(context, mirror, "no environment can be installed")


@check("network-hub", "model hub", FAIL, TRUST)
def hub(context: Context) -> Finding:
    """Checkpoints come from it."""
    return _reach(context, context.machine.variables.get("HF_ENDPOINT") or HUB, "no checkpoint can be downloaded")


@check("network-registry", "image registry", FAIL, TRUST, requires=(ENGINE,))
def registry(context: Context) -> Finding:
    """Base images come from it."""
    return _reach(context, REGISTRY, "no image can be built")
