"""`fleet`: run a command on several machines in parallel; a dead or slow one affects only its own row."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from vlalab.commands.machines import RemoteMachine
from vlalab.environments import venvs
from vlalab.host.console import LabError, status
from vlalab.host.paths import ADMIN
from vlalab.host.processes import die_with_parent
from vlalab.host.shared_code import entrypoint

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
