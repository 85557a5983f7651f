"""`host setup`: runs the playbook admin/setup.yaml, on this machine or on others, and asks the doctor afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from vlalab.commands import fleet, machines
from vlalab.commands.machines import Machine
from vlalab.host.console import LabError, require_known, say
from vlalab.host.paths import ADMIN, ROOT

STEPS = ("engine", "nvidia", "users", "volume", "install", "upgrades", "boot")
EXTRAS = ("driver", "rootless")
ENGINES = ("docker", "distribution", "none")
DOCTOR_S = 120.0


@dataclass(frozen=True)
class Setup:
    """What was asked for. Without machines and inventory: this machine."""

    hosts: list[Machine] = field(default_factory=list)
    inventory: str | None = None
    values: dict[str, object] = field(default_factory=dict)  # of admin/defaults.yaml
    only: list[str] = field(default_factory=list)  # of STEPS; none: all
    check: bool = False
    ask_password: bool = False

    @property
    def is_local(self) -> bool:
        """Whether this machine is set up."""
        return not self.hosts and not self.inventory


def values(given: dict[str, object]) -> dict[str, object]:
    """Returns the playbook's variables for what was typed; what was not typed stays as admin/defaults.yaml has it.

    Raises LabError for a setting that has no such form or that the playbook does not know.
    """
    flags = {"engine": "engine", "volume": "volume", "lab": "lab_root", "from": "lab_source", "ca_bundle": "ca_bundle"}
    found = {name: given[flag] for flag, name in flags.items() if given[flag]}
    known = yaml.safe_load((ADMIN / "defaults.yaml").read_text())
    for text in given["set"]:
        name, equals, value = text.partition("=")
        if not equals:
            raise LabError(f"--set '{text}' has no value; expected NAME=VALUE")
        require_known("--set", [name], known)
        found[name] = value
    return {**found, "extras": list(given["with"]), "users": list(given["user"]), "boot": list(given["boot"])}


def set_up(wanted: Setup) -> int:
    """Runs the playbook. Returns its exit code; after one that went well, the doctor's."""
    _refuse(wanted)
    values = {"lab_root": str(ROOT), **wanted.values} if wanted.is_local else _from_repository(wanted)
    with nullcontext("localhost,") if wanted.is_local else _inventory(wanted) as inventory:
        line = [*command(wanted, str(inventory)), "-e", json.dumps(values)]
        code = subprocess.run(
            line, env=machines.variables()
        ).returncode  # it may ask for a password, or about a host key
    if code or wanted.check:
        return code
    say("asking the doctor")
    if wanted.is_local:
        return subprocess.run([ROOT / "lab", "doctor"], stdin=subprocess.DEVNULL).returncode
    chosen = machines.chosen(wanted.hosts, wanted.inventory, str(values["lab_root"]) if "lab_root" in values else None)
    return fleet.run("doctor", chosen, fleet.PARALLEL, DOCTOR_S, as_json=False)


def command(wanted: Setup, inventory: str) -> list[str]:
    """Returns Ansible's command, but for its variables."""
    line = [*machines.ansible("playbook"), "-i", inventory, str(ADMIN / "setup.yaml")]
    line += ["--connection", "local"] if wanted.is_local else []
    line += ["--check", "--diff"] if wanted.check else []
    line += ["--ask-become-pass"] if wanted.ask_password else []
    return line + (["--tags", ",".join(wanted.only)] if wanted.only else [])


def _inventory(wanted: Setup):
    return nullcontext(Path(wanted.inventory)) if wanted.inventory else machines.as_inventory(wanted.hosts)


def _refuse(wanted: Setup) -> None:
    """Raises LabError for what cannot go well, before anything is installed."""
    if wanted.hosts and wanted.inventory:
        raise LabError("--hosts and --inventory both name machines; give one of them")
    if wanted.is_local and os.geteuid() != 0:
        raise LabError(f"setting up this machine takes root; run: sudo {ROOT}/lab {' '.join(sys.argv[1:])}")
    if "rootless" in wanted.values["extras"] and not wanted.values["users"]:
        raise LabError("--with rootless makes an engine for each user; name them: --user anna,ben")
    if wanted.is_local and "lab_source" in wanted.values:
        raise LabError("--from is for other machines; on this one the lab is this clone")


def _from_repository(wanted: Setup) -> dict[str, object]:
    """Returns the values with the address that others clone the lab from. Raises LabError where there is none."""
    if wanted.values.get("lab_source") or (wanted.only and "install" not in wanted.only):
        return wanted.values
    asked = subprocess.run(["git", "-C", ROOT, "remote", "get-url", "origin"], capture_output=True, text=True)
    if ":" not in asked.stdout:
        raise LabError("this clone has no origin that other machines can reach; name an address with --from ADDRESS")
    return {**wanted.values, "lab_source": asked.stdout.strip()}
