"""`fleet`: one question to several machines at once, and one table; one that is dead or slow spoils no other's row."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from vlalab.commands import machines
from vlalab.commands.machines import Machine
from vlalab.host import endings
from vlalab.host.console import LabError, status
from vlalab.host.paths import ADMIN
from vlalab.host.processes import die_with_parent

SCHEMA = 1
PLAIN_WIDTH = 160
CODES = {"pass": 0, "warn": 1, "fail": 2}
PULL = """
was=$(git rev-parse --short HEAD) && git pull -q --ff-only && ./lab --version >/dev/null &&
for one in images/*/.venv; do
    [ ! -d "$one" ] || ./lab env "$(basename "$(dirname "$one")")" >/dev/null || exit
done && echo "$was $(git rev-parse --short HEAD)"
"""
COMMANDS = {
    "doctor": "./lab doctor --json",
    "status": "./lab status --json",
    "pull": PULL,
    "restart": "./lab restart",
}
CONNECT_S = 10.0
PARALLEL = 16
QUICK_S, LONG_S = 60.0, 1800.0  # what one machine may take to tell something, and to do something


@dataclass(frozen=True)
class Row:
    """What one machine said: a verdict (pass, warn or fail), one line, what mends it; `answer`: the JSON it sent."""

    machine: str
    verdict: str
    what: str
    fix: str = ""
    seconds: float = 0.0
    answer: object = field(default=None, compare=False)


def timeout_s(verb: str) -> float:
    """Returns how long one machine may take."""
    return LONG_S if verb in ("pull", "restart") else QUICK_S


def run(verb: str, chosen: list[Machine], parallel: int, timeout_s: float, as_json: bool) -> int:
    """Asks all machines and prints the table, or its JSON. Returns 0, 1 for warnings, 2 where one failed or is away."""
    asked = {"command": COMMANDS[verb], "parallel": parallel, "timeout_s": timeout_s, "connect_s": CONNECT_S}
    with status(f"fleet {verb}: {len(chosen)} machines") as line:
        rows = []
        for answer in answers(chosen, asked):
            rows.append(judge(verb, answer))
            line.update(f"{len(rows)} have answered")
    names = [one.name for one in chosen]
    rows.sort(key=lambda row: names.index(row.machine))
    worst = max((row.verdict for row in rows), key=CODES.__getitem__)
    if as_json:
        print(json.dumps({"schema": SCHEMA, "task": verb, "verdict": worst, "machines": [asdict(r) for r in rows]}))
    else:
        show(rows)
    return CODES[worst]


def answers(chosen: list[Machine], asked: dict) -> Iterator[dict]:
    """Yields each machine's answer as it arrives (admin/fleet.py says what is in it)."""
    command = [str(machines.environment().python), "-I", str(ADMIN / "fleet.py")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent()
    ) as process:
        json.dump({**asked, "machines": [asdict(one) for one in chosen]}, process.stdin)
        process.stdin.close()
        yield from map(json.loads, process.stdout)
    if process.returncode != 0:
        raise LabError(f"the program that asks the machines ended with code {process.returncode} (its words are above)")


def judge(verb: str, answer: dict) -> Row:
    """Returns the row of an answer."""
    named = {"machine": answer["name"], "seconds": answer["seconds"]}
    if "error" in answer:
        why, _, fix = answer["error"].partition(": ") if ": ssh" in answer["error"] else (answer["error"], "", "")
        return Row(verdict="fail", what=why, fix=fix, **named)
    if answer["code"] == 0 or (verb == "doctor" and answer["out"].startswith("{")):
        return JUDGES[verb](answer, named)
    words = (answer["err"].strip() or answer["out"].strip() or f"ended with code {answer['code']}").splitlines()
    lacks = re.search(r"\bcd\b.*|\./lab: ?(not found|no such file)", words[-1], re.IGNORECASE)
    fix = f"./lab host setup --hosts {answer['name']} --from ADDRESS" if lacks else ""
    return Row(verdict="fail", what="no lab lies there" if lacks else words[-1].removeprefix("lab: "), fix=fix, **named)


def _doctors(answer: dict, named: dict) -> Row:
    found = json.loads(answer["out"])
    bad = [one for one in found["checks"] if one["verdict"] in ("fail", "warn")]
    bad.sort(key=lambda one: one["verdict"] != "fail")
    verdict = {0: "pass", 1: "warn"}.get(answer["code"], "fail")
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    first = bad[0] if bad else {"why": f"{len(found['checks'])} checks", "fix": ""}
    return Row(verdict=verdict, what=first["why"] + more, fix=first["fix"] or "", answer=found, **named)


def _statuses(answer: dict, named: dict) -> Row:
    found = json.loads(answer["out"])
    up = [one for one in found["services"] if one["state"] != "down"]
    sick = [one for one in up if one["health"] != "healthy"]
    words = ", ".join(f"{one['name']} {one['health'] or one['state']}" for one in up) or "nothing is up"
    fix = f"./lab fleet restart --hosts {named['machine']}" if sick else ""
    return Row(verdict="warn" if sick else "pass", what=words, fix=fix, answer=found, **named)


def _pulled(answer: dict, named: dict) -> Row:
    was, now = answer["out"].split()[-2:]
    return Row(verdict="pass", what=f"is at {now}" if was == now else f"{was} → {now}", **named)


def _restarted(answer: dict, named: dict) -> Row:
    lines = [" ".join(line.split()) for line in answer["out"].splitlines() if line.strip()]
    return Row(verdict="pass", what="; ".join(lines) or "nothing was up", **named)


JUDGES = {"doctor": _doctors, "status": _statuses, "pull": _pulled, "restart": _restarted}


def show(rows: list[Row]) -> None:
    """Prints the table, and below it how many are well."""
    from rich.table import Table  # here, for it takes a fifth of the tool's start

    table = Table("machine", "verdict", "what", "fix", "s", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row.machine, row.verdict, row.what, row.fix, f"{row.seconds:.1f}")
    endings.console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table)
    print(f"\n{sum(row.verdict == 'pass' for row in rows)} of {len(rows)} machines are well")
