"""A network of the private engine's own: a free subnet, a bridge, and the rules that let its containers out.

The engine itself runs with --iptables=false: an engine that keeps its own rules clears those of another on the machine.
"""

from __future__ import annotations

import ipaddress
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.docker.packages import Unavailable

CANDIDATES = [
    ipaddress.ip_network(f"{start}.0.0/16")
    for start in [*(f"10.{second}" for second in range(201, 250)), *(f"172.{second}" for second in range(20, 32))]
]


@dataclass(frozen=True)
class Network:
    """One /16: the engine's bridge has its first /24, networks that Compose makes are taken from its upper half."""

    subnet: ipaddress.IPv4Network

    @property
    def bridge(self) -> str:
        """Name of the engine's default bridge."""
        return "vlalab{}-{}".format(*self.subnet.network_address.packed[:2])

    @property
    def pool(self) -> str:
        """The part that networks of containers are taken from."""
        return str(list(self.subnet.subnets(1))[1])

    @property
    def rules(self) -> list[list[str]]:
        """What iptables is told, without the verb: out through the machine's address, forwarded both ways."""
        here = str(self.subnet)
        return [
            ["nat", "POSTROUTING", "-s", here, "!", "-d", here, "-j", "MASQUERADE"],
            ["filter", "FORWARD", "-s", here, "-j", "ACCEPT"],
            ["filter", "FORWARD", "-d", here, "-j", "ACCEPT"],
        ]


def make() -> Network:
    """Makes a network on a subnet that nothing here uses. Raises Unavailable where the kernel does not let us."""
    for subnet in _free():
        network = Network(subnet)
        if _tell(["ip", "link", "add", network.bridge, "type", "bridge"]) is not None:
            if Path(f"/sys/class/net/{network.bridge}").exists():
                continue  # another run took it just now
            raise Unavailable("no network bridge can be made on this machine (is it an unprivileged container?)")
        try:
            _set_up(network)
        except Unavailable:
            remove(network)
            raise
        return network
    raise Unavailable("no private subnet is free for the tests' containers")


def _set_up(network: Network) -> None:
    address = f"{network.subnet.network_address + 1}/24"
    commands = [
        ["ip", "address", "add", address, "dev", network.bridge],
        ["ip", "link", "set", network.bridge, "up"],
        *(["iptables", "-w", "-t", table, "-I", chain, *rule] for table, chain, *rule in network.rules),
    ]
    for command in commands:
        if words := _tell(command):
            raise Unavailable(f"no network for containers: `{' '.join(command)}` says: {words}")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def remove(network: Network) -> None:
    """Takes away the rules, the bridge, and what an engine that was killed left of its own bridges."""
    for table, chain, *rule in network.rules:
        _tell(["iptables", "-w", "-t", table, "-D", chain, *rule])
    shown = subprocess.run(["ip", "-j", "-4", "address"], capture_output=True, text=True).stdout
    for link in json.loads(shown or "[]"):
        addresses = [ipaddress.ip_address(entry["local"]) for entry in link.get("addr_info", [])]
        if any(address in network.subnet for address in addresses):
            _tell(["ip", "link", "delete", link["ifname"]])


def _free() -> list[ipaddress.IPv4Network]:
    """Returns the candidates that no route of this machine and no name server is in."""
    shown = subprocess.run(["ip", "-4", "route", "show", "table", "all"], capture_output=True, text=True).stdout
    found = re.findall(r"(?m)^(?:\w+ )?(\d+\.\d+\.\d+\.\d+(?:/\d+)?)", shown)
    found += re.findall(r"(?m)^nameserver (\d+\.\d+\.\d+\.\d+)", Path("/etc/resolv.conf").read_text())
    used = [ipaddress.ip_network(text, strict=False) for text in found]
    return [subnet for subnet in CANDIDATES if not any(subnet.overlaps(other) for other in used)]


def _tell(command: list[str]) -> str | None:
    """Runs a command. Returns None when it went well, else what it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        return f"{command[0]} is not installed"
    return None if done.returncode == 0 else (done.stderr.strip() or f"exit code {done.returncode}")
