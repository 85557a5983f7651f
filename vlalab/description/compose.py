"""Reads compose.yaml, the only description of a service, with Compose's own rules for variables.

Of Compose's many forms this reads those that this repository uses, and refuses the others by name.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from vlalab.description.interpolation import interpolate, read_dotenv
from vlalab.host import borrowed, state
from vlalab.host.console import LabError
from vlalab.host.paths import ROOT

FILE = ROOT / "compose.yaml"
GPU_FILE = ROOT / "compose.gpu.yaml"
ROLE = "vla-lab.role"  # the label that tells policies from jobs
BENCHMARK = "vla-lab.benchmark"  # the label of a policy that acts in one benchmark only
PAGE = "ui"  # it shows the others
PROJECT = "VLALAB_PROJECT"  # compose.yaml's name: is this variable's value

ADDRESS = borrowed.module("vla_contract.server.public")
_TOKENS = borrowed.module("vla_contract.protocol.tokens")


@dataclass(frozen=True)
class Port:
    """A published port: `bind:published` on the host leads to `target` inside."""

    bind: str
    published: int
    target: int


@dataclass(frozen=True)
class Health:
    """A health check: a command that exits with 0 when the service can do its work."""

    test: tuple[str, ...]
    timeout_s: float


@dataclass(frozen=True)
class Service:
    """One service of compose.yaml, with its variables filled in."""

    name: str
    environment_name: str  # x-local: which images/<env> it runs in
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

    def words(self) -> tuple[str, ...]:
        """Returns its command and the values of its variables: all that may name another service's address."""
        return (*self.command, *self.environment.values())


def read(path: Path = FILE, variables: Mapping[str, str] | None = None) -> dict[str, Service]:
    """Returns the services of a compose file. `variables` default to the process's own over those of .env.

    Raises LabError for what this reader does not know, and for a `${VARIABLE:?text}` that is not set.
    """
    known = environment_variables(path.parent) if variables is None else variables
    known = {**known, **discovered(known, path)}
    document = _filled(_document(path), known)
    return {name: _service(name, body, known) for name, body in document["services"].items()}


def discovered(variables: Mapping[str, str], path: Path = FILE) -> dict[str, str]:
    """Return VLALAB_SERVICES, VLALAB_POLICIES and VLALAB_GENERAL_POLICIES: name=http://name:port, by commas.

    Services are those with a port, policies those with the label `vla-lab.role: policy`, general ones those of them
    without the label `vla-lab.benchmark`. So the pages and the simulator find a new service. A list that the variables
    have already stays.
    """
    bodies = {name: body for name, body in _document(path)["services"].items() if body.get("ports") and name != PAGE}
    addresses = {
        name: f"{name}=http://{name}:{interpolate(str(body['ports'][0]), variables).rpartition(':')[2]}"
        for name, body in bodies.items()
    }
    labels = {name: _pairs(body.get("labels")) for name, body in bodies.items()}
    policies = [name for name in addresses if labels[name].get(ROLE) == "policy"]
    general = [name for name in policies if BENCHMARK not in labels[name]]
    lists = {"VLALAB_SERVICES": addresses, "VLALAB_POLICIES": policies, "VLALAB_GENERAL_POLICIES": general}
    return {
        variable: variables.get(variable) or ",".join(addresses[name] for name in names)
        for variable, names in lists.items()
    }


def needs(name: str, path: Path = FILE, variables: Mapping[str, str] | None = None) -> list[str]:
    """Returns the services that one needs, and those they need, in the order to start them; itself comes last.

    What it depends on but was told to leave alone is not needed: by default the page asks openvla, and with
    VLALAB_UI_POLICY=http://oracle:8001 it does not.
    """
    services, by_default = read(path, variables), read(path, {})
    order: list[str] = []

    def visit(one: str) -> None:
        for other in services[one].depends_on:
            if _names(by_default[one], other) <= _names(services[one], other):
                visit(other)
        if one not in order:
            order.append(one)

    visit(name)
    return order


def _names(service: Service, other: str) -> int:
    return sum(f"//{other}:" in word for word in service.words())


def token() -> str | None:
    """Return the lab's token, None without one. Raises LabError, without the token, for one that cannot be sent."""
    token = environment_variables().get("VLALAB_TOKEN")
    try:
        return _TOKENS.check_token("VLALAB_TOKEN", token) if token else None
    except ValueError as error:
        raise LabError(str(error)) from None


def page_url(service: str) -> str:
    """Return the address at which a proxy with TLS shows a service ($VLALAB_PUBLIC_URL), "" where it has none.

    Raises LabError for a bad address, or one without a token.
    """
    try:
        return str(ADDRESS.page_url(service, environment_variables()))
    except ValueError as error:
        raise LabError(str(error)) from None


def names() -> list[str]:
    """Returns the names of all services."""
    return list(_document(FILE)["services"])


def written(service: str) -> dict:
    """Returns what compose.yaml says about a service, with its variables as they are written."""
    return _document(FILE)["services"][service]


def filled(service: str, variables: Mapping[str, str]) -> object:
    """Returns all that both files say about a service, with these variables: equal for equal settings."""
    return [_filled(body, variables) for body in _bodies(service)]


def texts(service: str) -> list[str]:
    """Returns every text of both files about a service, as it is written."""
    return [text for body in _bodies(service) for text in _texts(body)]


def _bodies(service: str) -> list[object]:
    return [_document(file)["services"].get(service, {}) for file in (FILE, GPU_FILE) if file.exists()]


def _texts(node: object) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for one in inner:
        yield from _texts(one)


def gpu_services(path: Path = GPU_FILE) -> tuple[str, ...]:
    """Returns the services that compose.gpu.yaml gives a GPU."""
    return tuple(_document(path)["services"]) if path.exists() else ()


def device_request(service: str, path: Path = GPU_FILE) -> Mapping[str, object]:
    """Returns what compose.gpu.yaml asks for a service (driver, device_ids, capabilities), variables not filled in."""
    (request,) = _document(path)["services"][service]["deploy"]["resources"]["reservations"]["devices"]
    return request


def project() -> str:
    """Returns the name that Compose's containers and network carry, and by which services are told from others' ones.

    $COMPOSE_PROJECT_NAME, else $VLALAB_PROJECT, of .env too; else this caller's and clone's own.
    """
    known = environment_variables()
    return known.get("COMPOSE_PROJECT_NAME") or known.get(PROJECT) or f"vla-lab-{state.owner()}"


def _document(path: Path) -> dict:
    """Returns a file as it is written. Nobody may change what it returns: it is read once while it stays the same."""
    status = path.stat()
    return _parsed(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=8)
def _parsed(path: Path, mtime_ns: int, size: int) -> dict:
    return yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def environment_variables(root: Path = ROOT) -> dict[str, str]:
    """Returns the variables that Compose would see: those of the root's .env under the process's own."""
    return {**read_dotenv(root / ".env"), **os.environ}


def _filled(node: object, variables: Mapping[str, str]) -> object:
    if isinstance(node, str):
        return interpolate(node, variables)
    if isinstance(node, dict):
        return {key: _filled(value, variables) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(value, variables) for value in node]
    return node


# --- services -----------------------------------------------------------------------------------------------


def _service(name: str, body: Mapping, known: Mapping[str, str]) -> Service:
    if "extends" in body or "env_file" in body or isinstance(body.get("environment"), list):
        unread = "extends, env_file or a list of variables"
        raise LabError(f"compose.yaml: service '{name}' uses {unread}, which the local runtime does not read")
    if "x-local" not in body:
        raise LabError(f"compose.yaml: service '{name}' has no x-local; name the images/ folder it runs in")
    command, environment = body.get("command") or [], body.get("environment") or {}
    # A variable without a value is the caller's own.
    environment = {key: known.get(key) if value is None else value for key, value in environment.items()}
    return Service(
        name=name,
        environment_name=body["x-local"],
        command=tuple(shlex.split(command) if isinstance(command, str) else map(str, command)),
        environment=_pairs(environment),
        ports=tuple(_port(name, text) for text in body.get("ports") or ()),
        health=_health(name, body.get("healthcheck")),
        mounts=tuple(_mount(name, text) for text in body.get("volumes") or ()),
        restart=str(body.get("restart", "no")),
        stop_grace_s=seconds(body.get("stop_grace_period", "10s")),
        role=_pairs(body.get("labels")).get(ROLE, "service"),
        profiles=tuple(body.get("profiles") or ()),
        depends_on=tuple(body.get("depends_on") or ()),
    )


def _pairs(body: Mapping | None) -> dict[str, str]:
    """Return a mapping as texts, without entries that have no value."""
    return {key: str(value) for key, value in (body or {}).items() if value is not None}


def _port(name: str, text: object) -> Port:
    parts = str(text).rsplit(":", 2)
    if len(parts) != 3 or not all(part.isdecimal() and 0 < int(part) < 65536 for part in parts[1:]):
        variable = f"VLALAB_{name.upper().replace('-', '_')}_PORT"
        raise LabError(
            f"service '{name}' would be published at {text!r}; expected address:port:port with ports from 1 to 65535 "
            f"({variable} and VLALAB_BIND say where)"
        )
    return Port(parts[0], int(parts[1]), int(parts[2]))


def _mount(name: str, body: object) -> tuple[str, str]:
    long = body if isinstance(body, Mapping) and body.get("type") == "bind" else {}
    source, target = str(long.get("source", "")), str(long.get("target", ""))
    if not (source.startswith(("/", "./", "~")) and target.startswith("/")):
        raise LabError(
            f"compose.yaml: service '{name}' mounts {body!r}; expected {{type: bind, source: ./this, target: /that}}"
        )
    return source, target


def _health(name: str, body: Mapping | None) -> Health | None:
    if body is None:
        return None
    test = body["test"]
    if not isinstance(test, list) or test[0] != "CMD":
        raise LabError(f"compose.yaml: service '{name}' has the health check {test!r}; expected a list [CMD, …]")
    return Health(tuple(test[1:]), seconds(body.get("timeout", "30s")))


_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}


def seconds(text: object) -> float:
    """Returns a duration of Compose ("1m30s", "500ms") in seconds. Raises LabError for another form."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|us|h|m|s)", str(text))
    if not parts or "".join(number + unit for number, unit in parts) != str(text):
        raise LabError(f"compose.yaml: {text!r} is no duration; expected one like '10s' or '1m30s'")
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)
