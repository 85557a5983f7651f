"""Other machines: given by name, or in an Ansible inventory file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from vlalab.environments import venvs
from vlalab.host.console import LabError
from vlalab.host.paths import ADMIN

VARIABLE = "VLALAB_INVENTORY"
INSTALL = "/opt/vla-lab"
SELECTION_CONFLICT = "--hosts and --inventory cannot be combined; give one of them"
NAME = re.compile(r"(?:(?P<user>[a-z_][\w.-]*)@)?(?P<host>[A-Za-z0-9][\w.-]*)(?::(?P<port>\d{1,5}))?", re.ASCII)


@dataclass(frozen=True)
class RemoteMachine:
    """A machine, its SSH settings (None: as in ~/.ssh/config), and the lab's directory on it."""

    name: str
    host: str
    user: str | None = None
    port: int | None = None
    key: str | None = None
    root: str = INSTALL


def variables() -> dict[str, str]:
    """Return the environment variables for Ansible: the lab's configuration, a separate cache, and UTF-8."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    ansible_settings = {"ANSIBLE_CONFIG": str(ADMIN / "ansible.cfg"), "ANSIBLE_HOME": f"{cache}/vla-lab/ansible"}
    return {**os.environ, **ansible_settings, "LC_ALL": "C.UTF-8"}


def ansible(program: str) -> list[str]:
    """Return the start of an Ansible command: playbook or inventory."""
    return [str(venvs.ensure(ADMIN.name).python), "-m", "ansible", program]


def read(label: str, text: str) -> RemoteMachine:
    """Return the machine of [USER@]HOST[:PORT]. Raise LabError for an invalid text."""
    match = NAME.fullmatch(text)
    if not match or int(match["port"] or 22) > 65535:
        raise LabError(f"invalid {label} '{text}'; expected [USER@]HOST[:PORT], for example gpu01 or anna@gpu01:2222")
    return RemoteMachine(text, match["host"], match["user"], int(match["port"]) if match["port"] else None)


def select(hosts: list[RemoteMachine], inventory: str | None, root: str | None = None) -> list[RemoteMachine]:
    """Return the selected machines. Raise LabError for none, and if both hosts and an inventory are given."""
    if hosts and inventory:
        raise LabError(SELECTION_CONFLICT)
    inventory = inventory or (None if hosts else os.environ.get(VARIABLE))
    if not hosts and not inventory:
        raise LabError(f"no machines given; use --hosts gpu01,gpu02, --inventory FILE or the variable {VARIABLE}")
    machines = read_inventory(Path(inventory)) if inventory else hosts
    return [replace(machine, root=root) for machine in machines] if root else machines


def read_inventory(path: Path) -> list[RemoteMachine]:
    """Return the machines of an inventory, sorted by name. Raise LabError if Ansible cannot read it."""
    command = [*ansible("inventory"), "-i", str(path), "--list"]
    done = subprocess.run(command, env=variables(), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    groups = json.loads(done.stdout) if done.returncode == 0 else {}
    hostvars = groups.pop("_meta", {}).get("hostvars", {})
    machines = []
    for name in sorted({name for group in groups.values() for name in group.get("hosts", ())}):
        values = hostvars.get(name, {})
        key, port = values.get("ansible_ssh_private_key_file"), values.get("ansible_port")
        host, user = str(values.get("ansible_host", name)), values.get("ansible_user")
        key, root = os.path.expanduser(key) if key else None, str(values.get("lab_root", INSTALL))
        machines.append(RemoteMachine(name, host, user, int(port) if port else None, key, root))
    if not machines:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise LabError(f"no machines found in {path}; Ansible printed: {last}")
    return machines


@contextmanager
def inventory_file(machines: list[RemoteMachine]) -> Iterator[Path]:
    """Yield a temporary inventory file with those machines."""
    hosts = {}
    for machine in machines:
        values = {"ansible_host": machine.host, "ansible_user": machine.user, "ansible_port": machine.port}
        values |= {"lab_root": machine.root}
        hosts[machine.name] = {name: value for name, value in values.items() if value is not None}
    with tempfile.NamedTemporaryFile("w", suffix=".json", prefix="vla-lab-") as file:
        json.dump({"all": {"hosts": hosts}}, file)
        file.flush()
        yield Path(file.name)
