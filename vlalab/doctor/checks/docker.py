"""Docker: whether an engine answers, of which kind it is, and what of it loses GPUs, disk or addresses."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from vlalab.description import ports
from vlalab.doctor.machine import RUN_S
from vlalab.doctor.types import FAIL, PASS, WARN, Case, Check, Finding, fail, ok, refused, skip, warn
from vlalab.engine import docker, space
from vlalab.host.memory import spell

NONE = "no engine answers"
# Where an engine takes networks from if daemon.json names no pools, and how large each is: 31 of them.
POOLS = (("172.17.0.0/16", 16), ("172.18.0.0/15", 16), ("172.20.0.0/14", 16), ("172.24.0.0/13", 16),
         ("192.168.0.0/16", 20))  # fmt: skip
FEW_NETWORKS = 5
NETWORKS = "/sys/class/net"
LAYER, IMAGE = 10**9, 10**10  # bytes: below the first nothing is built, below the second not every image
PROBE = ("docker", "version", "--format", "{{json .}}")
ABOUT = ("docker", "info", "--format", "{{json .}}")


def about(case: Case) -> dict:
    """Returns what `docker info` says; nothing where no engine answers."""
    said = case.machine.run(*ABOUT) if _lack(case) is None else None
    return said.json() if said and said.code == 0 else {}


def _lack(case: Case) -> str | None:
    """Returns why the engine cannot be used, as every refusal says it; None where it can."""
    try:
        said = case.machine.run(*PROBE)
    except TimeoutError:
        return docker.silent(RUN_S)
    if said is None:
        return docker.no_command()
    return docker.why_unfit(said.code, said.out, said.err, case.machine.which("docker") or "")


def engine(case: Case) -> Finding:
    """Asks the engine for its version."""
    if case.machine.which("docker") is None:
        return skip("no docker command: services run as processes")
    if lack := _lack(case):
        return refused(WARN, lack)
    said = case.machine.run(*PROBE)
    version = (said.json() if said else {})["Server"]["Version"]
    return ok(f"version {version}", facts={"version": version})


def _plugin(case: Case, name: str) -> Finding:
    if _lack(case):
        return skip(NONE)
    said = case.machine.run("docker", name, "version")
    if problem := docker.plugin_lack(name, said.code if said else 1, said.out if said else ""):
        return refused(WARN, problem)
    return ok(f"version {'.'.join(map(str, docker.version(said.out)))}")


def compose(case: Case) -> Finding:
    """Asks for Compose's version."""
    return _plugin(case, "compose")


def buildx(case: Case) -> Finding:
    """Asks for buildx's version: BuildKit's command line."""
    return _plugin(case, "buildx")


def packaging(case: Case) -> Finding:
    """Tells Docker's own packages from snap's, and an engine from Docker Desktop's virtual machine."""
    info, path = about(case), case.machine.which("docker")
    if path is None:
        return skip("no docker command")
    if "Docker Desktop" in info.get("OperatingSystem", ""):
        return warn(
            "Docker Desktop's containers run in a virtual machine, which has no GPU", fix="docker context use default"
        )
    if "/snap/" in path or "/snap/" in info.get("DockerRootDir", ""):
        return warn(
            "Docker is snap's, which cannot reach a GPU's driver nor folders outside of homes",
            fix="sudo snap remove docker",
            hint="then install Docker's own packages",
        )
    return ok(info.get("OperatingSystem") or path) if info else skip(NONE)


def rootless(case: Case) -> Finding:
    """Tell whose a container's users are outside; rootless engines hand out GPUs without cgroups only."""
    info = about(case)
    if not info:
        return skip(NONE)
    if reason := docker.why_no_volume(info):
        return refused(FAIL, reason)
    if not docker.is_rootless(info):
        return ok("the engine runs as root; containers run as the caller")
    settings = case.machine.read("/etc/nvidia-container-runtime/config.toml")
    if settings is not None and not re.search(r"(?m)^\s*no-cgroups\s*=\s*true", settings):
        return warn(
            "rootless, and NVIDIA's runtime wants cgroups, which a user may not set",
            fix="sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place",
        )
    return ok("rootless: root in a container is you")


def cgroups(case: Case) -> Finding:
    """Finds the setting under which a reload of systemd takes GPUs from running containers."""
    info = about(case)
    if not info:
        return skip(NONE)
    driver = info.get("CgroupDriver", "")
    if "nvidia" not in (info.get("Runtimes") or {}):
        return ok(f"{driver}, and no NVIDIA runtime that it could take GPUs from") if driver else skip("not told")
    if driver != "systemd" or docker.cdi_devices(info):
        return ok(f"{driver}: a reload of systemd leaves containers their GPUs")
    links = [name for name in case.machine.names("/dev/char") if name.startswith("195:")]
    if links:
        return ok("systemd, with the GPUs' links under /dev/char")
    return warn(
        "cgroup driver systemd: after `systemctl daemon-reload` running containers lose their GPUs",
        fix="sudo nvidia-ctk system create-dev-char-symlinks --create-all",
        hint="at every boot (docs/doctor.md)",
    )


def group(case: Case) -> Finding:
    """Tells who is in group docker, which is as good as root."""
    found = re.search(r"(?m)^docker:[^:]*:\d+:(.*)$", case.machine.read("/etc/group") or "")
    if not found:
        return skip("there is no group docker")
    members = [name for name in found[1].split(",") if name]
    return ok(f"as good as root: {', '.join(members)}" if members else "nobody is in it", facts={"members": members})


def routes(text: str, on_link: bool = False) -> Iterator[tuple[str, ipaddress.IPv4Network]]:
    """Yields (interface, network) of /proc/net/route, where numbers are hexadecimal and little-endian.

    on_link: only networks without a gateway between.
    """
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or fields[7] == "0" * 8 or (on_link and fields[2] != "0" * 8):
            continue
        destination, mask = (bytes.fromhex(fields[at])[::-1] for at in (1, 7))
        yield fields[0], ipaddress.ip_network((destination, str(ipaddress.ip_address(mask))), strict=False)


def addresses(case: Case) -> Finding:
    """Find networks of Docker's that hide one of the machine's, such as a VPN's, and count those it can still make."""
    table = case.machine.read("/proc/net/route") or ""
    known = [(name, net) for name, net in routes(table) if net.prefixlen > 1]  # a VPN's default route is two halves
    ours = [(name, net) for name, net in known if name == "docker0" or name.startswith("br-")]
    if not ours:
        return skip("Docker has no network here")
    for name, net in ours:
        for other, theirs in known:
            if other not in (name, *(one for one, _ in ours)) and net.overlaps(theirs):
                return warn(
                    f"Docker's network {net} ({name}) overlaps {theirs} of {other}, which containers cannot reach",
                    hint='choose another in /etc/docker/daemon.json ("default-address-pools"), then',
                    fix="sudo systemctl restart docker",
                )
    left = networks_left(about(case), [net for _, net in routes(table, on_link=True)])
    if left < FEW_NETWORKS:
        return warn(
            f"{left} address ranges are left for Docker's networks, of which every user's clone takes one",
            fix="sudo ./lab host setup --only engine",
            hint="for more",
        )
    return ok(f"networks of Docker's: {len(ours)}")


def networks_left(info: dict, taken: Sequence[ipaddress.IPv4Network]) -> int:
    """Return how many networks an engine can still make, counted up to FEW_NETWORKS. taken: what is on link already.

    Source: moby, libnetwork/netutils, InferReservedNetworks.
    """
    pools = [(one["Base"], one["Size"]) for one in info.get("DefaultAddressPools") or () if ":" not in one["Base"]]
    networks = (one for base, size in pools or POOLS for one in ipaddress.ip_network(base).subnets(new_prefix=size))
    free = (one for one in networks if not any(one.overlaps(net) for net in taken))
    return len(list(islice(free, FEW_NETWORKS)))


def mtu(case: Case) -> Finding:
    """Compare the MTU of Docker's networks with that of the way out; larger packets may vanish there."""
    rows = [line.split() for line in (case.machine.read("/proc/net/route") or "").splitlines()[1:]]
    # Of several default routes the kernel takes the narrowest (a VPN has two halves), then the lowest metric.
    ways = [(int(row[7], 16).bit_count(), -int(row[6]), row[0]) for row in rows if len(row) > 7 and row[1] == "0" * 8]
    size = {name: int(case.machine.read(f"{NETWORKS}/{name}/mtu") or 0) for name in case.machine.names(NETWORKS)}
    ours = {name: size[name] for name in size if re.fullmatch("docker0|br-[0-9a-f]{12}", name)}
    out = max(ways)[-1] if ways else ""
    if not ours or not size.get(out):
        return skip("Docker has no network here" if not ours else "no way out")
    name = max(ours, key=lambda one: ours[one])
    if ours[name] <= size[out]:
        return ok(f"{size[out]} ({out})")
    return warn(
        f"{name} has MTU {ours[name]} and {out}, the way out, {size[out]}: TLS in containers may hang",
        hint=f'put "mtu": {size[out]}, "default-network-opts": {{"bridge": {{"com.docker.network.driver.mtu": '
        f'"{size[out]}"}}}} into /etc/docker/daemon.json, ./lab down, then',
        fix="sudo systemctl restart docker",
    )


def firewall(case: Case) -> Finding:
    """Tell that ufw does not hold for ports that Docker publishes."""
    bind = case.machine.variables.get("VLALAB_BIND") or "127.0.0.1"
    if ports.is_loopback(bind):
        return ok(f"ports are published on {bind} alone")
    if not about(case) or not re.search(r"(?m)^ENABLED=yes", case.machine.read("/etc/ufw/ufw.conf") or ""):
        return skip("no ufw with Docker here")
    return warn(
        f"VLALAB_BIND={bind} opens ports that ufw does not guard: Docker's rules come before its own",
        hint="allow addresses in iptables' chain DOCKER-USER, or take out VLALAB_BIND and use an SSH tunnel",
    )


def store(case: Case) -> Finding:
    """Measures where the engine keeps images."""
    info = about(case)
    data = info.get("DockerRootDir", "")
    place = space.images_directory(info, case.machine.read(space.CONTAINERD_CONFIG))
    disk = case.machine.disk(place) if place else None
    if disk is None:
        return skip(f"{place} is not on this machine" if place else NONE)
    shown, more = f"{spell(disk.free)} free at {place}", {"fix": "./lab clean", "hint": "see what can be freed"}
    if case.environments and (text := space.lack(case.environments, disk.free, place, case.no_cache)):
        return refused(FAIL, text)
    if disk.free < LAYER:
        return fail(f"{shown}: no image can be built or pulled", **more)
    if place == space.CONTAINERD_ROOT and not data.startswith("/var/lib/docker") and case.machine.disk(data) != disk:
        return warn(
            f"images are in {place}, although data-root is {data}: containerd has a root of its own, {shown}",
            hint=f'set root = "{data}/containerd" in {space.CONTAINERD_CONFIG}, then',
            fix="sudo systemctl restart containerd docker",
        )
    return warn(f"{shown}; an image takes up to 8 GB", **more) if disk.free < IMAGE else ok(shown)


def project(case: Case) -> Finding:
    """Finds containers of another clone under this one's project name: either one's `up` would replace the other's."""
    name = case.machine.variables.get("VLALAB_PROJECT")
    if not name:
        return ok("this clone has a project of its own")
    if not about(case):
        return skip(NONE)
    label = "com.docker.compose.project"
    said = case.machine.run(
        "docker", "ps", "--all", "--filter", f"label={label}={name}", "--format", "{{json .Labels}}"
    )
    folders = set(re.findall(rf"{label}\.working_dir=([^,\"]+)", said.out if said else "")) - {str(case.root)}
    if folders:
        return warn(
            f"project {name} (VLALAB_PROJECT) is also that of {sorted(folders)[0]}: each replaces the other's",
            hint="name another in .env, or none",
        )
    return ok(f"project {name} is this clone's alone")


def runtimes(case: Case) -> Finding:
    """Tells the engine's default runtime."""
    info = about(case)
    if not info:
        return skip(NONE)
    default = info.get("DefaultRuntime", "runc")
    if default not in ("runc", "nvidia", "crun", "io.containerd.runc.v2"):
        return warn(
            f"default runtime {default}; runc, crun and nvidia are known to work", hint="see /etc/docker/daemon.json"
        )
    return ok(f"{default}; images ask for no GPU of themselves" if default == "nvidia" else default)


def daemon_file(case: Case) -> Finding:
    """Reads /etc/docker/daemon.json: with a mistake in it the engine does not start."""
    text = case.machine.read("/etc/docker/daemon.json")
    if text is None:
        return skip("/etc/docker/daemon.json is not there")
    try:
        json.loads(text or "{}")
    except ValueError as error:
        return fail(f"/etc/docker/daemon.json is no JSON ({error}): the engine will not start", hint="correct it")
    return ok(str(Path("/etc/docker/daemon.json")))


CHECKS = (
    Check("docker-engine", "engine", "Without one, services run as local processes.", WARN,
          "sudo systemctl start docker", engine),
    Check("docker-settings", "engine's settings", "An engine with a broken file does not start.", FAIL,
          "sudo editor /etc/docker/daemon.json", daemon_file),
    Check("docker-compose", "Compose", "Containers of services are started by it.", WARN,
          "sudo apt-get install docker-compose-plugin", compose),
    Check("docker-buildx", "buildx", "Images are built by it.", WARN,
          "sudo apt-get install docker-buildx-plugin", buildx),
    Check("docker-packaging", "packaging", "snap's and Desktop's containers see no GPU.", WARN,
          "sudo snap remove docker", packaging),
    Check("docker-rootless", "rootless", "Remapped users cannot write; rootless ones have no cgroups for GPUs.", FAIL,
          "sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place", rootless),
    Check("docker-cgroups", "cgroup driver", "A reload of systemd takes GPUs from running containers.", WARN,
          "sudo nvidia-ctk system create-dev-char-symlinks --create-all", cgroups, needs="torch"),
    Check("docker-runtime", "default runtime", "Another default runtime may start containers differently.", WARN,
          "sudo editor /etc/docker/daemon.json", runtimes),
    Check("docker-group", "group docker", "Who is in it can be root on this machine.", PASS, "", group),
    Check("docker-addresses", "address pools", "A network behind Docker's own cannot be reached.", WARN,
          "sudo editor /etc/docker/daemon.json", addresses),
    Check("docker-mtu", "MTU", "Larger packets than the way out carries are lost.", WARN,
          "sudo editor /etc/docker/daemon.json", mtu),
    Check("docker-firewall", "firewall", "Docker's rules come before those of ufw.", WARN,
          "VLALAB_BIND=127.0.0.1 in .env", firewall),
    Check("docker-disk", "disk of the images", "A build or a pull ends in the middle.", FAIL, "./lab clean", store,
          before=("build",)),
    Check("docker-project", "Compose project", "Two clones with one project replace each other's containers.", WARN,
          "VLALAB_PROJECT in .env", project),
)  # fmt: skip
