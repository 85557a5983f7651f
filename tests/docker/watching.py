"""What can be seen of services from outside: health, ports, answers."""

from __future__ import annotations

import contextlib
import ipaddress
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tests.docker.lab import Lab
from vlalab.description import compose
from vlalab.engine import docker


class HealthWatch(threading.Thread):
    """Writes down the health states that a project's containers go through: looks whenever the engine tells of one."""

    def __init__(self, lab: Lab):
        super().__init__(daemon=True)
        self.lab, self.seen = lab, {}
        own = f"label=com.docker.compose.project=vlalab-{lab.name}"
        events = ["events", "--since", str(int(time.time())), "--filter", own, "--filter", "type=container"]
        told_of = [word for event in ("start", "health_status") for word in ("--filter", f"event={event}")]
        self.events = docker.open_pipe([*events, *told_of], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)

    def run(self) -> None:
        """Looks at every event until the block ends."""
        for _ in self.events.stdout:
            self.look()

    def look(self) -> None:
        """Adds the states that are new."""
        if ids := self.lab.ids():
            for record in docker.parse_json(docker.run(["inspect", *ids], check=False).stdout):
                service = record["Config"]["Labels"]["com.docker.compose.service"]
                states = self.seen.setdefault(service, [])
                now = (record["State"].get("Health") or {}).get("Status", "none")
                if record["State"]["Status"] == "running" and states[-1:] != [now]:
                    states.append(now)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.events.terminate()
        self.join()
        self.events.wait()
        self.look()


def listening(port: int) -> set[str]:
    """Returns the addresses of this machine on which something listens on that port (IPv4 and IPv6)."""
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                address, state = line.split()[1], line.split()[3]
                if state == "0A" and int(address.split(":")[1], 16) == port:
                    words = bytes.fromhex(address.split(":")[0])
                    parts = [words[at : at + 4][::-1] for at in range(0, len(words), 4)]  # little-endian words
                    found.add(str(ipaddress.ip_address(b"".join(parts))))
    return found


def url(lab: Lab, service: str, path: str = "") -> str:
    """Returns the address at which this machine reaches a service."""
    return f"http://127.0.0.1:{lab.ports[service]}{path}"


def get(address: str, token: str = "", host: str = "") -> tuple[int, bytes]:
    """Returns status and body of a GET. host: the header `Host`, where it is not the address's own."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(address, headers=headers | ({"Host": host} if host else {}))
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def services_of(environments: Collection[str]) -> list[str]:
    """Return the services with a port that run in the images of those environments."""
    known = compose.read(variables={})
    return [name for name, service in known.items() if service.ports and service.environment_name in environments]


def require_own_names(lab: Lab, names: Sequence[str]) -> None:
    """Assert that services without a token answer to loopback's names and their own, and refuse (403) any other."""
    for name in names:
        path = urlsplit(compose.read(variables={})[name].health.test[-1]).path
        for host in ("localhost:59999", f"127.0.0.1:{lab.ports[name]}", f"{name}:{lab.ports[name]}"):
            assert get(url(lab, name, path), host=host)[0] == 200, (name, host)
        for host in ("evil.example", f"0.0.0.0:{lab.ports[name]}"):
            assert get(url(lab, name, path), host=host)[0] == 403, (name, host)
        code = f"import urllib.request as r; print(r.urlopen('http://{name}:{lab.ports[name]}{path}').status)"
        other = names[names.index(name) - 1]  # by its name in the network, from another container
        asked = docker.run(["exec", lab.container(other)["Id"], "python", "-c", code], check=False)
        assert asked.stdout.strip() == "200", (name, asked.stderr)
