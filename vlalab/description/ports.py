"""Which port a service of compose.yaml gets on this machine."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

from vlalab.description import compose
from vlalab.description.compose import Service
from vlalab.host.console import LabError, require_known, say


def is_loopback(bind: str) -> bool:
    """Return whether only this machine reaches that address."""
    address = _ip(bind)
    return address.is_loopback if address else bind == "localhost"


def is_of_network(bind: str) -> bool:
    """Return whether that is one address that other machines, and containers of this one, reach: 192.168.1.10."""
    address = _ip(bind)
    return address is not None and not (address.is_loopback or address.is_unspecified)


def _ip(bind: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(bind.strip("[]"))
    except ValueError:
        return None


def service_on_free_port(
    path: Path,
    name: str,
    variables: Mapping[str, str],
    any_port: bool,
    current_port: int | None = None,
    by_engine: bool = False,
) -> Service:
    """Return the service as compose.yaml has it, on a free port: its port variable is set where the port is taken.

    mine: the port that the service has already, if it runs; nobody else took that one. by_engine: Docker's engine will
    listen there, which may have rights that the caller lacks. Raises LabError for a place that cannot be.
    """
    bind = variables.get("VLALAB_BIND") or "127.0.0.1"
    variables = {**variables, "VLALAB_LISTEN": bind}
    if not is_loopback(bind) and not variables.get("VLALAB_TOKEN"):
        raise LabError(f"VLALAB_BIND={bind} opens services to the network; set VLALAB_TOKEN too (8 characters or more)")
    services = compose.read(path, variables)
    require_known("service", [name], services)
    service = services[name]
    if not service.ports:
        return service
    requested = service.ports[0].published
    reserved = {p.published for other in services.values() if other.name != name for p in other.ports}
    port = (
        requested
        if requested == current_port
        else next(_free_ports(bind, 0 if any_port else requested, reserved, by_engine))
    )
    port = current_port if current_port and port != requested else port
    if port == requested:
        return service
    if not any_port:
        say(f"port {requested} is taken by another program; '{name}' gets {port}")
    updated = compose.read(path, {**variables, port_variable(name): str(port)})[name]
    if updated.ports[0].published != port:
        raise LabError(f"compose.yaml: the port of '{name}' does not follow {port_variable(name)}")
    return updated


def port_variable(service: str) -> str:
    """Return the variable that holds a service's port."""
    return f"VLALAB_{service.upper().replace('-', '_')}_PORT"


def free(host: str) -> int:
    """Return a port of this machine that nobody listens on, and that no other call will choose."""
    return next(_free_ports(host, 0, frozenset()))


def _free_ports(bind: str, requested: int, reserved: Set[int], by_engine: bool = False) -> Iterator[int]:
    """Yield ports nobody listens on: the wanted one, the hundred after it but `others`, then any. 0 means any.

    One that is yielded is this process's until it ends: what it starts there does not listen yet.
    """
    candidates = [port for port in range(requested, requested + 100) if port not in reserved] if requested else []
    for port in (*candidates, *[0] * 9):
        with socket.socket(socket.AF_INET6 if ":" in bind else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((bind, port))
            except OSError as error:  # a port that is taken is no reason to stop
                if by_engine and isinstance(error, PermissionError):
                    yield port
                elif isinstance(error, PermissionError):
                    reason = "those below 1024 are root's; choose another (VLALAB_…_PORT)"
                    raise LabError(f"port {port} is not permitted to you: {reason}") from None
                elif not by_engine and (error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror)):
                    reason = "is no address of this machine; expected one of its own, or 0.0.0.0 for all"
                    raise LabError(f"VLALAB_BIND={bind} {reason}") from None
                continue
            if _reserve(selected := probe.getsockname()[1]):
                yield selected
    raise LabError(f"no free port at {bind}")


_RESERVED: dict[int, socket.socket] = {}


def _reserve(port: int) -> bool:
    """Return whether no other `./lab` on this machine, of any user, has chosen that port for what it is starting.

    A name in the abstract namespace (unix(7)) is the machine's, needs no file, and goes with the process that has it.
    """
    if port not in _RESERVED:
        reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            reservation.bind(f"\0vla-lab/port/{port}")
        except OSError:
            reservation.close()
            return False
        _RESERVED[port] = reservation
    return True


def reachable(bind: str) -> str:
    """Return the address at which this machine reaches a service that listens on `bind`."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(bind, bind)
