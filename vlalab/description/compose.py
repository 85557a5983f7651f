"""Read compose.yaml, the only description of a service, with Compose's rules for variables.

Supports the Compose syntax that this repository uses, and rejects other syntax by name.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vlalab.description import variants
from vlalab.description.environment_file import interpolate, read_dotenv
from vlalab.host import shared_code, state
from vlalab.host.console import LabError
from vlalab.host.paths import ROOT

FILE = ROOT / "compose.yaml"
GPU_FILE = ROOT / "compose.gpu.yaml"
ROLE = "vla-lab.role"  # label: policy, job or service
BENCHMARK = "vla-lab.benchmark"  # label of a policy for one benchmark only
PAGE = "ui"  # the service of the web pages
PROJECT = "VLALAB_PROJECT"  # its value is the `name:` in compose.yaml
UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}

ADDRESS = shared_code.module("vla_contract.server.public")
_TOKENS = shared_code.module("vla_contract.protocol.tokens")


@dataclass(frozen=True)
class Port:
    """A published port: `bind:published` on the host leads to `target` inside."""

    bind: str
    published: int
    target: int


@dataclass(frozen=True)
class Health:
    """A health check: a command that exits with 0 when the service is ready."""

    test: tuple[str, ...]
    timeout_s: float


@dataclass(frozen=True)
class ComposeService:
    """One service of compose.yaml, with interpolated variables."""

    name: str
    environment_name: str  # x-local: the images/<env> it runs in
    command: tuple[str, ...]
    environment: Mapping[str, str]
    ports: tuple[Port, ...]
    health: Health | None
    mounts: tuple[tuple[str, str], ...]  # (host path, path inside)
    restart: str
    stop_grace_s: float
    role: str
    profiles: tuple[str, ...]
    depends_on: tuple[str, ...]

    def mentions(self, service: str) -> int:
        """Return how often its command and variables contain the address of another service."""
        return sum(f"//{service}:" in word for word in (*self.command, *self.environment.values()))


# --- the whole file -----------------------------------------------------------------------------------------


def read(path: Path = FILE, variables: Mapping[str, str] | None = None) -> dict[str, ComposeService]:
    """Return the services of a compose file. `variables` default to those of .env, overridden by the process's.

    Raise LabError for unsupported syntax, and for an unset `${VARIABLE:?text}`.
    """
    values = environment_variables(path.parent) if variables is None else variables
    values = {**values, **filled_in(values, path)}
    return {name: _service(name, _filled(body, values), values) for name, body in _document(path)["services"].items()}


def filled_in(variables: Mapping[str, str], path: Path = FILE) -> dict[str, str]:
    """Return the variables that ./lab fills in: `discovered`, and the variants of environments for this machine."""
    return {**discovered(variables, path), **variants.interpolated(variables)}


def discovered(variables: Mapping[str, str], path: Path = FILE) -> dict[str, str]:
    """Return VLALAB_SERVICES, VLALAB_POLICIES and VLALAB_GENERAL_POLICIES: name=http://name:port, comma-separated.

    Services are those with a port, policies those with the label `vla-lab.role: policy`, general policies those without
    the label `vla-lab.benchmark`. So the pages and the simulator discover a new service. Lists that are set already
    stay.
    """
    bodies = {name: body for name, body in _document(path)["services"].items() if body.get("ports") and name != PAGE}
    addresses = {
        name: f"{name}=http://{name}:{interpolate(str(body['ports'][0]), variables).rpartition(':')[2]}"
        for name, body in bodies.items()
    }
    labels = {name: body.get("labels") or {} for name, body in bodies.items()}
    policies = [name for name in addresses if labels[name].get(ROLE) == "policy"]
    general = [name for name in policies if BENCHMARK not in labels[name]]
    lists = {"VLALAB_SERVICES": addresses, "VLALAB_POLICIES": policies, "VLALAB_GENERAL_POLICIES": general}
    return {
        variable: variables.get(variable) or ",".join(addresses[name] for name in names)
        for variable, names in lists.items()
    }


def needs(name: str, path: Path = FILE, variables: Mapping[str, str] | None = None) -> list[str]:
    """Return a service's transitive dependencies in start order, then the service.

    A dependency whose address the variables replace is not needed: by default the pages use openvla, but not with
    VLALAB_UI_POLICY=http://oracle:8001.
    """
    services, by_default = read(path, variables), read(path, {})
    order: list[str] = []

    def visit(service: str) -> None:
        for other in services[service].depends_on:
            if by_default[service].mentions(other) <= services[service].mentions(other):
                visit(other)
        if service not in order:
            order.append(service)

    visit(name)
    return order


def names() -> list[str]:
    """Return the names of all services."""
    return list(_document(FILE)["services"])


def gpu_services() -> tuple[str, ...]:
    """Return the services with a GPU in compose.gpu.yaml."""
    return tuple(_document(GPU_FILE)["services"]) if GPU_FILE.exists() else ()


def device_request(service: str, path: Path = GPU_FILE) -> Any:
    """Return a service's device request in compose.gpu.yaml (driver, device_ids, capabilities), not interpolated."""
    (request,) = _document(path)["services"][service]["deploy"]["resources"]["reservations"]["devices"]
    return request


def written(service: str) -> Any:
    """Return a service's entry in compose.yaml, not interpolated."""
    return _document(FILE)["services"][service]


def filled(service: str, variables: Mapping[str, str]) -> object:
    """Return a service's entries in both files, interpolated; they are equal if the settings have equal effects."""
    variables = {**variables, **variants.interpolated(variables)}
    return [_filled(body, variables) for body in _bodies(service)]


def variables_of(service: str) -> set[str]:
    """Return the names of the variables in a service's entries in both files."""
    return set(re.findall(r"\$\{(\w+)", json.dumps(_bodies(service))))


def _bodies(service: str) -> list[object]:
    return [_document(file)["services"].get(service, {}) for file in (FILE, GPU_FILE) if file.exists()]


def _document(path: Path) -> Any:
    """Return a parsed file, not interpolated. Do not change the result: it is cached."""
    return _parsed(path.read_text())


@functools.lru_cache(maxsize=8)
def _parsed(text: str) -> Any:
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _filled(node: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(node, str):
        return interpolate(node, variables)
    if isinstance(node, dict):
        return {key: _filled(value, variables) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(value, variables) for value in node]
    return node


# --- variables ----------------------------------------------------------------------------------------------


def environment_variables(root: Path = ROOT) -> dict[str, str]:
    """Return the variables that Compose would see: those of the root's .env, overridden by the process's."""
    return {**read_dotenv(root / ".env"), **os.environ}


def project() -> str:
    """Return the Compose project, which containers and network belong to; other projects are not touched.

    $COMPOSE_PROJECT_NAME, else $VLALAB_PROJECT, also from .env; else one per user and clone.
    """
    variables = environment_variables()
    return variables.get("COMPOSE_PROJECT_NAME") or variables.get(PROJECT) or f"vla-lab-{state.owner()}"


def token() -> str | None:
    """Return the lab's token, None without one. Raise LabError (without the token) for an invalid one."""
    token = environment_variables().get("VLALAB_TOKEN")
    try:
        return _TOKENS.check_token("VLALAB_TOKEN", token) if token else None
    except ValueError as error:
        raise LabError(str(error)) from None


def page_url(service: str) -> str:
    """Return a service's public address behind a TLS proxy ($VLALAB_PUBLIC_URL), "" without one.

    Raise LabError for an invalid address, or if no token is set.
    """
    try:
        return str(ADDRESS.page_url(service, environment_variables()))
    except ValueError as error:
        raise LabError(str(error)) from None


# --- one service --------------------------------------------------------------------------------------------


def _service(name: str, body: Mapping[str, Any], variables: Mapping[str, str]) -> ComposeService:
    label = f"compose.yaml: service '{name}'"
    if "extends" in body or "env_file" in body or isinstance(body.get("environment"), list):
        unread = "extends, env_file or a list of variables"
        raise LabError(f"{label} uses {unread}, which the local runtime does not support")
    if "x-local" not in body:
        raise LabError(f"{label} has no x-local; set it to its directory in images/")
    mounts = []
    for mount in body.get("volumes") or ():
        entry = mount if isinstance(mount, dict) and mount.get("type") == "bind" else {}
        source, target = str(entry.get("source", "")), str(entry.get("target", ""))
        if not (source.startswith(("/", "./", "~")) and target.startswith("/")):
            raise LabError(f"{label} has mount {mount!r}; expected {{type: bind, source: ./this, target: /that}}")
        mounts.append((source, target))
    ports = []
    for text in map(str, body.get("ports") or ()):
        parts = text.rsplit(":", 2)
        if len(parts) != 3 or not all(part.isdecimal() and 0 < int(part) < 65536 for part in parts[1:]):
            variable = f"VLALAB_{name.upper().replace('-', '_')}_PORT"
            raise LabError(
                f"service '{name}' has port {text!r}; expected address:port:port with ports from 1 to 65535 (set by "
                f"{variable} and VLALAB_BIND)"
            )
        ports.append(Port(parts[0], int(parts[1]), int(parts[2])))
    health = None
    if check := body.get("healthcheck"):
        if not isinstance(check["test"], list) or check["test"][0] != "CMD":
            raise LabError(f"{label} has health check {check['test']!r}; expected a list [CMD, …]")
        health = Health(tuple(check["test"][1:]), seconds(check.get("timeout", "30s")))
    command, environment = body.get("command") or [], body.get("environment") or {}
    # A variable without a value is taken from the caller.
    environment = {key: variables.get(key) if value is None else value for key, value in environment.items()}
    return ComposeService(
        name=name, environment_name=body["x-local"], ports=tuple(ports), health=health, mounts=tuple(mounts),
        command=tuple(shlex.split(command) if isinstance(command, str) else map(str, command)),
        environment={key: str(value) for key, value in environment.items() if value is not None},
        restart=str(body.get("restart", "no")), stop_grace_s=seconds(body.get("stop_grace_period", "10s")),
        role=str((body.get("labels") or {}).get(ROLE, "service")), profiles=tuple(body.get("profiles") or ()),
        depends_on=tuple(body.get("depends_on") or ()),
    )  # fmt: skip


def seconds(text: object) -> float:
    """Return a Compose duration ("1m30s", "500ms") in seconds. Raise LabError for an invalid one."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|us|h|m|s)", str(text))
    if not parts or "".join(number + unit for number, unit in parts) != str(text):
        raise LabError(f"compose.yaml: {text!r} is not a duration; expected for example '10s' or '1m30s'")
    return sum(float(number) * UNITS_S[unit] for number, unit in parts)
