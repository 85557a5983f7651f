"""`host setup`: run the playbook admin/setup.yaml on this or other machines, then the doctor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vlalab.commands import fleet
from vlalab.commands.fleet import RemoteMachine
from vlalab.host.console import LabError, check_choices, log_info
from vlalab.host.paths import ADMIN, ROOT

STEPS = ("engine", "nvidia", "users", "volume", "install", "upgrades", "boot")
EXTRAS = ("driver", "rootless")
ENGINES = ("docker", "distribution", "none")
DOCTOR_S = 120.0
LOCAL = "localhost,"  # an inventory of this machine alone


@dataclass(frozen=True)
class Setup:
    """The settings of `host setup`. Without hosts and inventory: this machine."""

    hosts: list[RemoteMachine] = field(default_factory=list)
    inventory: str | None = None
    values: dict[str, Any] = field(default_factory=dict)  # of admin/defaults.yaml
    only: list[str] = field(default_factory=list)  # of STEPS; empty: all
    check: bool = False
    ask_password: bool = False


def settings(typed: list[str]) -> dict[str, str]:
    """Return the playbook's variables from --set NAME=VALUE. Raise LabError for unknown ones."""
    defaults, values = yaml.safe_load((ADMIN / "defaults.yaml").read_text()), {}
    for text in typed:
        name, equals, value = text.partition("=")
        if not equals:
            raise LabError(f"--set '{text}' requires a value; expected NAME=VALUE")
        check_choices("--set", [name], defaults)
        values[name] = value
    return values


def run(setup: Setup) -> int:
    """Run the playbook, then the doctor; return the exit code of the last program.

    Raise LabError for invalid settings before anything is installed.
    """
    values, is_local = setup.values, not setup.hosts and not setup.inventory
    if setup.hosts and setup.inventory:
        raise LabError(fleet.SELECTION_CONFLICT)
    if is_local and os.geteuid() != 0:
        raise LabError(f"setting up this machine requires root; run: sudo {ROOT}/lab {' '.join(sys.argv[1:])}")
    if "rootless" in values["extras"] and not values["users"]:
        raise LabError("--with rootless requires the users, for example --user anna,ben")
    if is_local and "lab_source" in values:
        raise LabError("--from is only for other machines; this machine uses this clone")
    if is_local:
        values = {"lab_root": str(ROOT), **values}
    elif not values.get("lab_source") and (not setup.only or "install" in setup.only):
        origin = subprocess.run(["git", "-C", ROOT, "remote", "get-url", "origin"], capture_output=True, text=True)
        if ":" not in origin.stdout:
            raise LabError("this clone has no remote origin; give the repository to clone with --from ADDRESS")
        values = {**values, "lab_source": origin.stdout.strip()}
    inventory = Path(setup.inventory) if setup.inventory else LOCAL
    with fleet.inventory_file(setup.hosts) if setup.hosts else nullcontext(inventory) as inventory:
        line = [*command(setup, str(inventory)), "-e", json.dumps(values)]
        # Inherits the terminal, since Ansible may ask for a password or about a host key.
        code = subprocess.run(line, env=fleet.variables()).returncode
    if code or setup.check:
        return code
    log_info("running the doctor")
    if is_local:
        return subprocess.run([ROOT / "lab", "doctor"], stdin=subprocess.DEVNULL).returncode
    root = str(values["lab_root"]) if "lab_root" in values else None
    selected = fleet.select(setup.hosts, setup.inventory, root)
    return fleet.run("doctor", selected, fleet.PARALLEL, DOCTOR_S, as_json=False)


def command(setup: Setup, inventory: str) -> list[str]:
    """Return the Ansible command, without variables."""
    line = [*fleet.ansible("playbook"), "-i", inventory, str(ADMIN / "setup.yaml")]
    line += ["--connection", "local"] if inventory == LOCAL else []
    line += ["--check", "--diff"] if setup.check else []
    line += ["--ask-become-pass"] if setup.ask_password else []
    return line + (["--tags", ",".join(setup.only)] if setup.only else [])
