"""The ports of services on this machine."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

from vlalab.description import compose
from vlalab.description.compose import ComposeService
from vlalab.host.console import LabError, check_choices, log_info


def is_loopback(bind: str) -> bool:
    """Return whether an address is a loopback address."""
    try:
        return ipaddress.ip_address(bind.strip("[]")).is_loopback
    except ValueError:
        return bind == "localhost"


def is_of_network(bind: str) -> bool:
    """Return whether this is an IP address that other machines and containers can reach: 192.168.1.10."""
    try:
        address = ipaddress.ip_address(bind.strip("[]"))
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)


def service_on_free_port(
    path: Path, name: str, variables: Mapping[str, str], any_port: bool, current_port: int | None = None,
    by_engine: bool = False,
) -> ComposeService:  # fmt: skip
    """Return the service of compose.yaml with a free port: if its port is in use, its port variable is changed.

    current_port: the port of the service if it is running. by_engine: Docker will listen on the port, which may have
    permissions that the caller does not. Raise LabError for an invalid address.
    """
    bind = variables.get("VLALAB_BIND") or "127.0.0.1"
    variables = {**variables, "VLALAB_LISTEN": bind}
    if not is_loopback(bind) and not variables.get("VLALAB_TOKEN"):
        raise LabError(
            f"VLALAB_BIND={bind} makes services reachable from the network; set VLALAB_TOKEN too (8 characters or more)"
        )
    services = compose.read(path, variables)
    check_choices("service", [name], services)
    service = services[name]
    if not service.ports:
        return service
    requested = service.ports[0].published
    port = current_port
    if requested != current_port:
        reserved = {port.published for other in services.values() if other.name != name for port in other.ports}
        free_port = next(_free_ports(bind, 0 if any_port else requested, reserved, by_engine))
        port = current_port if current_port and free_port != requested else free_port
    if port == requested:
        return service
    if not any_port:
        log_info(f"port {requested} is already in use; '{name}' uses {port}")
    return compose.read(path, {**variables, port_variable(name): str(port)})[name]


def port_variable(service: str) -> str:
    """Return the name of a service's port variable."""
    return f"VLALAB_{service.upper().replace('-', '_')}_PORT"


def free(host: str) -> int:
    """Return a free port, and reserve it for this process."""
    return next(_free_ports(host, 0, frozenset()))


def _free_ports(bind: str, requested: int, reserved: Set[int], by_engine: bool = False) -> Iterator[int]:
    """Yield free ports: the requested one, the next hundred except `reserved`, then any. 0 requests any port.

    A yielded port is reserved until this process exits, since the service does not listen yet: by a name in the
    abstract namespace (unix(7)), which needs no file and is seen by all `./lab` processes of this machine.
    """
    candidates = [port for port in range(requested, requested + 100) if port not in reserved] if requested else []
    for port in (*candidates, *[0] * 9):
        with socket.socket(socket.AF_INET6 if ":" in bind else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((bind, port))
            except OSError as error:  # in use: try the next one
                if by_engine and isinstance(error, PermissionError):
                    yield port
                elif isinstance(error, PermissionError):
                    reason = "ports below 1024 require root; set another (VLALAB_…_PORT)"
                    raise LabError(f"no permission for port {port}: {reason}") from None
                elif not by_engine and (error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror)):
                    reason = "is not an address of this machine; expected one of its addresses, or 0.0.0.0 for all"
                    raise LabError(f"VLALAB_BIND={bind} {reason}") from None
                continue
            selected = probe.getsockname()[1]
        if selected not in _RESERVED:
            reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                reservation.bind(f"\0vla-lab/port/{selected}")
            except OSError:  # another process has it
                reservation.close()
                continue
            _RESERVED[selected] = reservation
        yield selected
    raise LabError(f"no free port found at {bind}")


_RESERVED: dict[int, socket.socket] = {}


def reachable(bind: str) -> str:
    """Return the local address of a service that listens on `bind`."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(bind, bind)
