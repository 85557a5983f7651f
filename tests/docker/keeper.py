"""Keeps a private Docker engine, `python -m tests.docker.keeper FOLDER [PROGRAMS]`, until its stdin ends.

The keeper is a process of its own, in a session and a mount namespace of its own, so that everything it made is taken
away when the tests end, whether they passed, were interrupted or were killed: the end of its stdin is the signal. It
prints one line of JSON, {"host", "config", "path"} or {"reason"}, and what happened to the disk at the end. PROGRAMS:
the folder of another engine, whose programs it gets as links instead of fetching and unpacking them again.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.docker import network, packages
from tests.docker.packages import Unavailable
from vlalab.host import processes

OWNER = "owner.json"  # who keeps the folder; without that process it is a killed run's and may go
GPU_REQUESTS = "gpu-requests"  # a line per container that a GPU was asked for
START_S = 60.0
STOP_S = 40.0


class Keeper:
    """A private engine in one folder: its programs, data, sockets, logs and the processes that it consists of."""

    def __init__(self, directory: Path, programs: Path | None = None) -> None:
        self.directory, self.programs = directory, programs
        self.host = f"unix://{directory}/docker.sock"
        self.children: list[subprocess.Popen] = []
        self.network: network.Network | None = None
        self.path: list[Path] = []

    def start(self) -> dict[str, object]:
        """Brings the engine up. Returns how to reach it; raises Unavailable where it does not come up."""
        self.path = packages.unpack_engine(packages.system(), self.directory, self.programs)
        self._note_gpu_requests()
        self.network = network.make()
        claim(self.directory, str(self.network.subnet))
        self._run("containerd", self._containerd())
        self._wait("containerd", self.directory / "containerd.sock")
        self._run("dockerd", self._dockerd(self.network))
        self._wait("dockerd", self.directory / "docker.sock")
        return {"host": self.host, "config": str(self._config()), "path": [str(part) for part in self.path]}

    def _note_gpu_requests(self) -> None:
        """Puts a hook where the engine looks for NVIDIA's; it writes down which devices a container is to get."""
        hook = self.path[0] / "nvidia-container-runtime-hook"
        config = """$(sed 's/.*"bundle":"\\([^"]*\\)".*/\\1/')/config.json"""
        hook.unlink(missing_ok=True)  # another engine's, where the programs are links
        hook.write_text(f"""#!/bin/sh
grep -o '"NVIDIA_VISIBLE_DEVICES=[^"]*"' "{config}" | tail -n 1 >> "{self.directory / GPU_REQUESTS}"
""")
        hook.chmod(0o755)

    def _containerd(self) -> list[str]:
        config = self.directory / "containerd.toml"
        config.write_text(
            f'version = 2\nroot = "{self.directory}/containerd"\nstate = "{self.directory}/run"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\naddress = "{self.directory}/containerd.sock"\n'
        )
        return ["containerd", "--config", str(config)]

    def _dockerd(self, net: network.Network) -> list[str]:
        options = {
            "config-file": self.directory / "daemon.json",
            "containerd": self.directory / "containerd.sock",
            "data-root": self.directory / "data",
            "exec-root": self.directory / "exec",
            "pidfile": self.directory / "dockerd.pid",
            "host": self.host,
            "bridge": net.bridge,
            "default-address-pool": f"base={net.pool},size=24",
            "iptables": "false",
            "ip6tables": "false",
            "init-path": shutil.which("docker-init", path=self._variables()["PATH"]) or "docker-init",
        }
        (self.directory / "daemon.json").write_text("{}")  # not the machine's /etc/docker/daemon.json
        return ["dockerd", *(f"--{name}={value}" for name, value in options.items())]

    def _config(self) -> Path:
        """Makes the folder for DOCKER_CONFIG: the CLI finds Compose and buildx by it, and no credentials."""
        config = self.directory / "config"
        config.mkdir()
        plugins = [str(path) for path in (self.directory / "root").glob("usr/lib*/docker/cli-plugins")]
        (config / "config.json").write_text(json.dumps({"cliPluginsExtraDirs": plugins}))
        return config

    def _variables(self) -> dict[str, str]:
        path = os.pathsep.join([*map(str, self.path), os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DOCKER_")}
        return {**kept, "PATH": path, "TMPDIR": str(self.directory / "tmp")}

    def _run(self, name: str, command: list[str]) -> None:
        (self.directory / "tmp").mkdir(exist_ok=True)
        log = (self.directory / f"{name}.log").open("wb")
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        variables, ends = self._variables(), processes.die_with_parent()
        try:
            self.children.append(subprocess.Popen(command, env=variables, preexec_fn=ends, **streams))
        except FileNotFoundError as error:
            raise Unavailable(f"{name} is not among the programs that were unpacked") from error

    def _wait(self, name: str, socket: Path) -> None:
        """Waits for a program's socket, which it makes when it is ready."""
        child, deadline = self.children[-1], time.monotonic() + START_S
        while not socket.exists():
            if child.poll() is not None:
                raise Unavailable(f"{name} cannot run on this machine: {self._last_words(name)}")
            if time.monotonic() > deadline:
                raise Unavailable(f"{name} was not ready after {START_S:.0f} s: {self._last_words(name)}")
            time.sleep(0.1)

    def _last_words(self, name: str) -> str:
        lines = (self.directory / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1][-300:] if lines else "it says nothing"

    def stop(self) -> None:
        """Ends every process and takes away mounts, network and folder."""
        for child in reversed(self.children):  # dockerd before containerd; it stops its containers
            _end(child)
        if self.network:
            network.remove(self.network)
        release(self.directory)


def _end(child: subprocess.Popen) -> None:
    child.terminate()
    try:
        child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def release(directory: Path) -> None:
    """Ends what an engine that was killed left running, unmounts what lies under its folder, and deletes the folder."""
    for pid in _shims(directory):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    mounts = [line.split()[4].replace("\\040", " ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{directory}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], capture_output=True)
    shutil.rmtree(directory, ignore_errors=True)


def _shims(directory: Path) -> list[int]:
    """Returns the containers' parents that name this folder on their command line: they can be nobody else's."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_bytes().decode(errors="replace").split("\0")
            if Path(words[0]).name.startswith("containerd-shim") and any(str(directory) in word for word in words):
                found.append(int(entry.parent.name))
    return found


def claim(directory: Path, subnet: str | None = None) -> None:
    """Writes down that this process keeps the folder, and the network that belongs to it."""
    me = processes.identify(os.getpid())
    assert me is not None
    (directory / OWNER).write_text(json.dumps({"identity": [me.pid, me.start_ticks, me.boot_id], "subnet": subnet}))


def sweep(parent: Path, prefix: str) -> None:
    """Takes away what runs left that were killed together with their keeper."""
    for owner in parent.glob(f"{prefix}*/{OWNER}"):
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(owner.read_text())
            if processes.Identity(*found["identity"]).is_alive():
                continue
            if found["subnet"]:
                network.remove(network.Network(ipaddress.IPv4Network(found["subnet"])))
            release(owner.parent)


def main(directory: Path, programs: Path | None = None) -> None:
    """Starts the engine, says how to reach it, waits for the end of stdin, and takes everything away."""
    keeper = Keeper(directory, programs)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    try:
        claim(directory)
        print(json.dumps(keeper.start()), flush=True)
        sys.stdin.read()
    except Unavailable as error:
        print(json.dumps({"reason": str(error)}), flush=True)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        keeper.stop()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
