"""Docker: the engine and its plugins, and the GPUs, disk, addresses and MTU of its containers."""

from __future__ import annotations

import ipaddress
import json
import re
from typing import Any

from vlalab.description import ports
from vlalab.doctor.check import FAIL, WARN, Condition, Context, Finding, check, fail, from_refusal, ok, skip, warn
from vlalab.doctor.machine import RUN_S
from vlalab.engine import docker, images
from vlalab.host.memory import format_size

NO_NETWORK = "Docker has no network here"
INTERFACES = "/sys/class/net"
MIN_DISK, LOW_DISK = 10**9, 10**10  # bytes: below the first nothing is built, below the second not every image
PROBE = ("docker", "version", "--format", "{{json .}}")
INFO = ("docker", "info", "--format", "{{json .}}")
SETTINGS = "/etc/docker/daemon.json"
RESTART = "sudo systemctl restart docker"


def engine_info(context: Context) -> dict[str, Any]:
    """Return the output of `docker info`; empty if no engine answers."""
    return context.machine.run(*INFO).json() if _engine_problem(context) is None else {}


ENGINE: Condition = (engine_info, "no engine answers")


def _engine_problem(context: Context) -> str | None:
    """Return why the engine cannot be used, and the fix; None if it can. Other commands print the same message."""
    path = context.machine.which("docker")
    if path is None:
        return docker.missing_command()
    try:
        output = context.machine.run(*PROBE)
    except TimeoutError:
        return docker.no_answer(RUN_S)
    return docker.engine_problem(output.code, output.out, output.err, path)


@check("docker-engine", "engine", WARN, "sudo systemctl start docker")
def engine(context: Context) -> Finding:
    """Without one, services run as local processes."""
    if context.machine.which("docker") is None:
        return skip("no docker command: services run as processes")
    if problem := _engine_problem(context):
        try:
            json.loads(context.machine.read(SETTINGS) or "{}")
        except ValueError as error:
            reason = f"{SETTINGS} is not valid JSON ({error}): the engine does not start"
            return warn(reason, RESTART, "correct it, then")
        return from_refusal(WARN, problem)
    version = context.machine.run(*PROBE).json()["Server"]["Version"]
    return ok(f"version {version}", details={"version": version})


@check("docker-plugins", "Compose and buildx", WARN, "sudo apt-get install docker-compose-plugin docker-buildx-plugin",
       requires=(ENGINE,))  # fmt: skip
def plugins(context: Context) -> Finding:
    """Compose starts the containers of services, buildx builds images."""
    versions = []
    for name in ("compose", "buildx"):
        output = context.machine.run("docker", name, "version")
        if problem := docker.plugin_version_problem(name, output.code, output.out):
            return from_refusal(WARN, problem)
        versions.append(f"{name} {'.'.join(map(str, docker.version(output.out)))}")
    return ok(", ".join(versions))


@check("docker-rootless", "users in containers", FAIL, RESTART, requires=(ENGINE,))
def users(context: Context) -> Finding:
    """With userns-remap, users in containers map to other users, who cannot write to the volume."""
    info = engine_info(context)
    if reason := docker.volume_problem(info):
        return from_refusal(FAIL, reason)
    return ok("rootless: root in a container is you" if docker.is_rootless(info) else "the caller's")


@check("docker-addresses", "address pools", WARN, RESTART)
def addresses(context: Context) -> Finding:
    """A network that overlaps Docker's cannot be reached."""
    networks = []  # (interface, network) of /proc/net/route, where numbers are hexadecimal and little-endian
    for fields in map(str.split, (context.machine.read("/proc/net/route") or "").splitlines()[1:]):
        if len(fields) > 7:
            address, mask = (ipaddress.IPv4Address(bytes.fromhex(fields[column])[::-1]) for column in (1, 7))
            networks.append((fields[0], ipaddress.IPv4Network(f"{address}/{mask}", strict=False)))
    networks = [(name, net) for name, net in networks if net.prefixlen > 1]  # a VPN's default route is two halves
    bridges = {name: net for name, net in networks if name == "docker0" or name.startswith("br-")}
    if not bridges:
        return skip(NO_NETWORK)
    for name, net in bridges.items():
        for other, network in networks:
            if other not in bridges and net.overlaps(network):
                reason = f"Docker's network {net} ({name}) overlaps {network} of {other}, which containers cannot reach"
                return warn(reason, RESTART, f'choose another in {SETTINGS} ("default-address-pools"), then')
    return ok(f"networks of Docker's: {len(bridges)}")


@check("docker-mtu", "MTU", WARN, RESTART)
def mtu(context: Context) -> Finding:
    """Packets from containers that exceed the default route's MTU are lost."""
    rows = [line.split() for line in (context.machine.read("/proc/net/route") or "").splitlines()[1:]]
    defaults = [row for row in rows if len(row) > 7 and row[1] == "0" * 8]
    # Of several default routes the kernel takes the narrowest (a VPN has two halves), then the lowest metric.
    defaults.sort(key=lambda row: (int(row[7], 16).bit_count(), -int(row[6])))
    sizes = {
        name: int(context.machine.read(f"{INTERFACES}/{name}/mtu") or 0) for name in context.machine.names(INTERFACES)
    }
    bridge_mtus = {name: sizes[name] for name in sizes if re.fullmatch("docker0|br-[0-9a-f]{12}", name)}
    out = defaults[-1][0] if defaults else ""
    if not bridge_mtus or not sizes.get(out):
        return skip(NO_NETWORK if not bridge_mtus else "no default route")
    name = max(bridge_mtus, key=lambda name: bridge_mtus[name])
    if bridge_mtus[name] <= sizes[out]:
        return ok(f"{sizes[out]} ({out})")
    return warn(
        f"{name} has MTU {bridge_mtus[name]} and {out}, the default route, {sizes[out]}: TLS in containers may hang",
        hint=f'put "mtu": {sizes[out]}, "default-network-opts": {{"bridge": {{"com.docker.network.driver.mtu": '
        f'"{sizes[out]}"}}}} into {SETTINGS}, ./lab down, then',
    )


@check("docker-firewall", "firewall", WARN, "VLALAB_BIND=127.0.0.1 in .env")
def firewall(context: Context) -> Finding:
    """Docker's rules take precedence over ufw's: a published port is open."""
    bind = context.machine.variables.get("VLALAB_BIND") or "127.0.0.1"
    if ports.is_loopback(bind):
        return ok(f"ports are published on {bind} alone")
    if not engine_info(context) or not re.search(r"(?m)^ENABLED=yes", context.machine.read("/etc/ufw/ufw.conf") or ""):
        return skip("no ufw with Docker here")
    reason = f"VLALAB_BIND={bind} opens ports that ufw does not protect: Docker's rules take precedence"
    return warn(
        reason, "", "allow addresses in iptables' chain DOCKER-USER, or remove VLALAB_BIND and use an SSH tunnel"
    )


@check("docker-disk", "disk of the images", FAIL, "./lab clean", requires=(ENGINE,), before=("build",))
def images_disk(context: Context) -> Finding:
    """A build or a pull stops halfway."""
    info, hint = engine_info(context), "see what can be freed"
    root, directory = (
        info.get("DockerRootDir", ""),
        images.directory(info, context.machine.read(images.CONTAINERD_CONFIG)),
    )
    disk = context.machine.disk(directory)
    if disk is None:
        return skip(f"{directory} is not on this machine")
    if context.environments and (
        problem := images.shortage(context.environments, disk.free, directory, context.no_cache)
    ):
        return from_refusal(FAIL, problem)
    free = f"{format_size(disk.free)} free at {directory}"
    if disk.free < MIN_DISK:
        return fail(f"{free}: no image can be built or pulled", hint=hint)
    if directory == images.CONTAINERD_ROOT and not root.startswith("/var/lib/docker"):
        reason = f"images are in {directory}, although data-root is {root}: containerd has its own root, {free}"
        return warn(reason, "sudo systemctl restart containerd docker", "set root in /etc/containerd/config.toml, then")
    return warn(f"{free}; an image takes up to 8 GB", hint=hint) if disk.free < LOW_DISK else ok(free)
