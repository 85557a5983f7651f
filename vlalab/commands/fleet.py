"""Other machines: named or in an Ansible inventory, and `fleet`: run a command on all of them in parallel.

A dead or slow one affects only its own row.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vlalab.environments import venvs
from vlalab.host.console import LabError, status
from vlalab.host.paths import ADMIN
from vlalab.host.processes import die_with_parent
from vlalab.host.shared_code import entrypoint

VARIABLE = "VLALAB_INVENTORY"
INSTALL = "/opt/vla-lab"
SELECTION_CONFLICT = "--hosts and --inventory cannot be combined; give one of them"
NAME = re.compile(r"(?:(?P<user>[a-z_][\w.-]*)@)?(?P<host>[A-Za-z0-9][\w.-]*)(?::(?P<port>\d{1,5}))?", re.ASCII)
SCHEMA = 1
PLAIN_WIDTH = 160
CODES = {"pass": 0, "warn": 1, "fail": 2}
PULL = """
was=$(git rev-parse --short HEAD) && git pull -q --ff-only && ./lab --version >/dev/null &&
for one in images/*/.venv images/*/*/.venv; do
    name=$(dirname "${one#images/}" | tr / -)
    [ ! -d "$one" ] || ./lab env "$name" --variant upstream >/dev/null || exit
done && echo "$was $(git rev-parse --short HEAD)"
"""
COMMANDS = {"doctor": "./lab doctor --json", "status": "./lab status --json", "pull": PULL, "restart": "./lab restart"}
TIMEOUT_S = {"doctor": 60.0, "status": 60.0, "pull": 1800.0, "restart": 1800.0}  # of one machine
CONNECT_S = 10.0
PARALLEL = 16
Row = dict[str, Any]  # of the table: machine, verdict (pass, warn or fail), what, fix, seconds, answer


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


def run(verb: str, selected: list[RemoteMachine], parallel: int, timeout_s: float, as_json: bool) -> int:
    """Run the command on all machines; print a table or JSON.

    Return 0, 1 for warnings, 2 if a machine failed or did not answer.
    """
    request = {
        "machines": [asdict(machine) for machine in selected], "command": COMMANDS[verb], "parallel": parallel,
        "timeout_s": timeout_s, "connect_s": CONNECT_S,
    }  # fmt: skip
    command = [str(venvs.ensure(ADMIN.name).python), "-I", str(ADMIN / "fleet.py")]
    rows: dict[str, Row] = {}
    with (
        status(f"fleet {verb}: {len(selected)} machines") as line,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent()
        ) as process,
    ):
        assert process.stdin and process.stdout
        json.dump(request, process.stdin)
        process.stdin.close()
        for answer in map(json.loads, process.stdout):  # in order of arrival
            rows[answer["name"]] = judge(verb, answer)
            line.update(f"{len(rows)} answered")
    if process.returncode != 0:
        raise LabError(f"admin/fleet.py ended with code {process.returncode} ; see its message above")
    reports = [rows[machine.name] for machine in selected]
    worst = max((row["verdict"] for row in reports), key=CODES.__getitem__)
    if as_json:
        print(json.dumps({"schema": SCHEMA, "task": verb, "verdict": worst, "machines": reports}))
        return CODES[worst]
    from rich.table import Table  # slow import

    table = Table("machine", "verdict", "what", "fix", "s", box=None, pad_edge=False)
    for row in reports:
        table.add_row(row["machine"], row["verdict"], row["what"], row["fix"], f"{row['seconds']:.1f}")
    entrypoint.console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table)
    print(f"\n{sum(row['verdict'] == 'pass' for row in reports)} of {len(reports)} machines without problems")
    return CODES[worst]


def judge(verb: str, answer: dict[str, Any]) -> Row:
    """Return the row (docs/host.md) of an answer, whose fields admin/fleet.py describes."""

    def row(verdict: str, summary: str, fix: str = "", report: object = None) -> Row:
        machine = {"machine": answer["name"], "verdict": verdict, "what": summary, "fix": fix}
        return {**machine, "seconds": answer["seconds"], "answer": report}

    if "error" in answer:
        reason, _, fix = answer["error"].partition(": ") if ": ssh" in answer["error"] else (answer["error"], "", "")
        return row("fail", reason, fix)
    out = answer["out"]
    if answer["code"] != 0 and not (verb == "doctor" and out.startswith("{")):
        last = (answer["err"].strip() or out.strip() or f"ended with code {answer['code']}").splitlines()[-1]
        if re.search(r"\bcd\b.*|\./lab: ?(not found|no such file)", last, re.IGNORECASE):
            fix = f"./lab host setup --hosts {answer['name']} --from ADDRESS"
            return row("fail", "the lab is not installed there", fix)
        return row("fail", last.removeprefix("lab: "))
    if verb == "pull":
        before, after = out.split()[-2:]
        return row("pass", f"already at {after}" if before == after else f"{before} → {after}")
    if verb == "restart":
        lines = [" ".join(line.split()) for line in out.splitlines() if line.strip()]
        return row("pass", "; ".join(lines) or "no services were running")
    report = json.loads(out)
    if verb == "doctor":
        bad = [check for verdict in ("fail", "warn") for check in report["checks"] if check["verdict"] == verdict]
        verdict = {0: "pass", 1: "warn"}.get(answer["code"], "fail")
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        first = bad[0] if bad else {"why": f"{len(report['checks'])} checks", "fix": ""}
        return row(verdict, first["why"] + more, first["fix"] or "", report)
    up = [service for service in report["services"] if service["state"] != "down"]
    states = [f"{service['name']} {service['health'] or service['state']}" for service in up]
    summary = ", ".join(states) or "no services are running"
    if all(service["health"] == "healthy" for service in up):
        return row("pass", summary, report=report)
    return row("warn", summary, f"./lab fleet restart --hosts {answer['name']}", report)
