"""Several machines: named one by one, or in an inventory file as Ansible has it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from vlalab.environments import venvs
from vlalab.environments.venvs import Environment
from vlalab.host.console import LabError
from vlalab.host.paths import ADMIN

VARIABLE = "VLALAB_INVENTORY"
INSTALL = "/opt/vla-lab"
NAME = re.compile(r"(?:(?P<user>[a-z_][\w.-]*)@)?(?P<host>[A-Za-z0-9][\w.-]*)(?::(?P<port>\d{1,5}))?", re.ASCII)


@dataclass(frozen=True)
class Machine:
    """One machine, how SSH reaches it, and where the lab lies there; None: what ~/.ssh/config says."""

    name: str
    host: str
    user: str | None = None
    port: int | None = None
    key: str | None = None
    root: str = INSTALL

    def as_ansible(self) -> dict[str, object]:
        """Returns its variables as an inventory has them."""
        named = {"ansible_host": self.host, "ansible_user": self.user, "ansible_port": self.port, "lab_root": self.root}
        return {name: value for name, value in named.items() if value is not None}


def environment() -> Environment:
    """Returns the environment with Ansible and Fabric, made on first use."""
    return venvs.ensure(ADMIN.name)


def variables() -> dict[str, str]:
    """Returns the variables under which Ansible runs: the lab's settings, a place for its notes, and text in UTF-8."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    own = {"ANSIBLE_CONFIG": str(ADMIN / "ansible.cfg"), "ANSIBLE_HOME": f"{cache}/vla-lab/ansible"}
    return {**os.environ, **own, "LC_ALL": "C.UTF-8"}


def ansible(program: str) -> list[str]:
    """Returns the beginning of a command of Ansible's: playbook or inventory."""
    return [str(environment().python), "-m", "ansible", program]


def read(label: str, text: str) -> Machine:
    """Returns the machine that was typed as [USER@]HOST[:PORT]. Raises LabError for anything else."""
    found = NAME.fullmatch(text)
    if not found or int(found["port"] or 22) > 65535:
        raise LabError(f"{label} '{text}' names no machine; expected [USER@]HOST[:PORT], as gpu01 or anna@gpu01:2222")
    return Machine(text, found["host"], found["user"], int(found["port"]) if found["port"] else None)


def chosen(hosts: list[Machine], inventory: str | None, root: str | None = None) -> list[Machine]:
    """Returns the machines that were asked for. Raises LabError for none, and for both ways at once."""
    if hosts and inventory:
        raise LabError("--hosts and --inventory both name machines; give one of them")
    inventory = inventory or (None if hosts else os.environ.get(VARIABLE))
    if not hosts and not inventory:
        raise LabError(f"no machines; name them (--hosts gpu01,gpu02), or a file (--inventory FILE, or {VARIABLE})")
    found = hosts or of_file(Path(inventory))
    return [Machine(**{**asdict(one), "root": root}) for one in found] if root else found


def of_file(path: Path) -> list[Machine]:
    """Returns the machines of an inventory, by name. Raises LabError where Ansible cannot read it."""
    command = [*ansible("inventory"), "-i", path, "--list"]
    asked = subprocess.run(command, env=variables(), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    groups = json.loads(asked.stdout) if asked.returncode == 0 else {}
    known = groups.pop("_meta", {}).get("hostvars", {})
    names = sorted({name for group in groups.values() for name in group.get("hosts", ())})
    if not names:
        words = asked.stderr.strip().splitlines()
        raise LabError(f"{path} names no machine; Ansible says: {words[-1] if words else 'nothing'}")
    return [_of_inventory(name, known.get(name, {})) for name in names]


def _of_inventory(name: str, given: dict) -> Machine:
    key, port = given.get("ansible_ssh_private_key_file"), given.get("ansible_port")
    return Machine(
        name,
        str(given.get("ansible_host", name)),
        given.get("ansible_user"),
        int(port) if port else None,
        os.path.expanduser(key) if key else None,
        str(given.get("lab_root", INSTALL)),
    )


@contextmanager
def as_inventory(hosts: list[Machine]) -> Iterator[Path]:
    """Holds an inventory file with those machines."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", prefix="vla-lab-") as file:
        json.dump({"all": {"hosts": {one.name: one.as_ansible() for one in hosts}}}, file)
        file.flush()
        yield Path(file.name)
