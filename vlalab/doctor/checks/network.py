"""The way to packages, checkpoints and base images; proxies and certificate authorities between."""

from __future__ import annotations

from urllib.parse import urlsplit

from vlalab.description.compose import ADDRESS
from vlalab.doctor.checks.docker import about
from vlalab.doctor.checks.host import INDEX
from vlalab.doctor.types import FAIL, WARN, Case, Check, Finding, fail, ok, skip, warn
from vlalab.host.library_variables import unusable

REGISTRY = "registry-1.docker.io"
HUB = "https://huggingface.co"
OFFLINE = ("HF_HUB_OFFLINE", "UV_OFFLINE", "PIP_NO_INDEX")
PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")
BUNDLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
TRUST = "sudo cp CERTIFICATE.crt /usr/local/share/ca-certificates/ && sudo update-ca-certificates"


def is_offline(case: Case) -> bool:
    """Returns whether this machine is meant to have no network."""
    return case.offline or any(case.machine.variables.get(name) in ("1", "true", "yes", "on") for name in OFFLINE)


def _reaches(case: Case, url: str, what: str) -> Finding:
    if is_offline(case):
        return skip("offline, as was asked for")
    host, answer = urlsplit(url).hostname, case.machine.fetch(url)
    if not answer.error:
        return ok(f"{host} answers")
    if "CERTIFICATE" in answer.error.upper():
        return fail(
            f"{host} shows a certificate of an authority that this machine does not trust",
            fix=TRUST,
            hint="with the file of your network's authority",
        )
    return warn(
        f"{host} cannot be reached ({answer.error}): {what}",
        fix="./lab restore FILE",
        hint="on a machine without network bring it in a bundle",
    )


def index(case: Case) -> Finding:
    """Asks the package index, or the mirror that the variables name."""
    named = next(
        (
            case.machine.variables[name]
            for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
            if case.machine.variables.get(name)
        ),
        f"https://{INDEX}/",
    )
    return _reaches(case, named, "no environment can be made")


def hub(case: Case) -> Finding:
    """Asks the model hub."""
    return _reaches(case, case.machine.variables.get("HF_ENDPOINT") or HUB, "no checkpoint can be downloaded")


def registry(case: Case) -> Finding:
    """Asks the registry of base images."""
    return (
        _reaches(case, f"https://{REGISTRY}/v2/", "no image can be built") if about(case) else skip("no engine answers")
    )


def proxy(case: Case) -> Finding:
    """Connects to the proxy that the variables name."""
    name = next((one for one in PROXIES if case.machine.variables.get(one)), "")
    if not name:
        return skip("none is set")
    try:
        parts = urlsplit(case.machine.variables[name])
        host, port = parts.hostname, parts.port or {"https": 443}.get(parts.scheme, 80)
    except ValueError:
        host = None
    if not host:
        return fail(f"{name} is no address; expected one like http://proxy:3128", fix=f"unset {name}")
    if not case.machine.connects(host, port):  # the variable may hold a password: host and port are enough
        return fail(
            f"the proxy {host}:{port} ({name}) does not answer: no download works",
            fix=f"unset {name}",
            hint="correct it, or",
        )
    return ok(f"{host}:{port} ({name})")


def variables(case: Case) -> Finding:
    """Look for variables that stop libraries."""
    reasons = unusable(case.machine.variables)
    if not reasons:
        return ok("none that stops a library")
    return warn("; ".join(reasons.values()), fix=f"unset {' '.join(reasons)}")


def public(case: Case) -> Finding:
    """Read the public address of the pages."""
    try:
        url = ADDRESS.public_url(case.machine.variables)
    except ValueError as error:
        return fail(str(error), fix=f"unset {ADDRESS.VARIABLE}", hint="correct it in the shell or .env, or")
    return ok(url) if url else skip("none is set")


def authority(case: Case) -> Finding:
    """Looks for the files of certificates that variables name."""
    for name in BUNDLES:
        path = case.machine.variables.get(name)
        if path and "-----BEGIN" not in (case.machine.read(path) or "") and not case.machine.names(path):
            return fail(f"{name} names {path}, which is no readable file of certificates", fix=f"unset {name}")
    return ok("as the system has them")


CHECKS = (
    Check("network-proxy", "proxy", "Every download goes through it.", FAIL, "unset HTTPS_PROXY", proxy),
    Check("network-variables", "libraries' variables", "The lab ignores those that stop a library.", WARN,
          "unset ALL_PROXY", variables),
    Check("network-public", "public address", "No service starts with a bad one, or without a token.", FAIL,
          "unset VLALAB_PUBLIC_URL", public),
    Check("network-authority", "certificates", "A network with its own authority has to be trusted.", FAIL,
          TRUST, authority),
    Check("network-index", "package index", "Environments are made from it.", FAIL, TRUST, index),
    Check("network-hub", "model hub", "Checkpoints come from it.", FAIL, TRUST, hub),
    Check("network-registry", "image registry", "Base images come from it.", FAIL, TRUST, registry),
)  # fmt: skip
