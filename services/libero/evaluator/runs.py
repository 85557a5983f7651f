"""Runs on the volume: `python -m services.libero.evaluator.runs list | report RUN | compare A B [--run-dir DIR]`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.libero.evaluator import report
from services.libero.evaluator.compare import Comparison, compare
from services.libero.evaluator.records import StoreError, as_damage
from services.libero.evaluator.rundir import STORE, RunRefused, find_run, find_runs
from services.libero.evaluator.stats import Rate
from services.libero.evaluator.store import RunStore
from services.libero.evaluator.terminal import one_line, say
from services.libero.simulator.suites import load_suite
from vla_contract import Volume


def list_runs(root: Path, console: Console) -> None:
    """Prints a table of the runs under `root`, the latest last."""
    folders = find_runs(root)
    if not folders:
        say(f"no runs in {root}", console.file)
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("run", "policy", "episodes", "success", "95 %", "assets", "state", "started"):
        justify = "right" if name in ("episodes", "success", "95 %") else "left"
        is_name = name == "run"  # the one to be typed again: it folds on a narrow terminal, the others are cut
        table.add_column(name, justify=justify, no_wrap=not is_name, overflow="fold", min_width=16 if is_name else None)
    problems = []
    for folder in folders:
        try:
            cells = run_row(folder)
        except (StoreError, OSError) as error:
            cells = [folder.name, "", "", "", "", "", "damaged", ""]
            problems.append(f"{folder.name}: {error}")
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    console.print(table)
    for problem in problems:
        console.print(Text(one_line(problem), style="red"), soft_wrap=True)


def run_row(folder: Path) -> list[str]:
    """Returns the cells of one run. StoreError if its store cannot be read."""
    with as_damage(folder / STORE), RunStore(folder / STORE, readonly=True) as store:
        return _cells_of_run(folder.name, store)


def _cells_of_run(name: str, store: RunStore) -> list[str]:
    counts, identity, sessions = store.counts().values(), store.meta("identity"), store.sessions()
    planned = sum(row["planned"] for row in counts)
    rate = Rate(sum(row["successes"] for row in counts), sum(row["done"] for row in counts))
    outcome = (sessions[-1]["outcome"] or "running or cut off") if sessions else "not started"
    low, high = rate.interval
    return [
        name,
        identity["policy"]["name"],
        f"{rate.trials}/{planned}",
        f"{100 * rate.value:.1f} %" if rate.trials else "–",
        f"{100 * low:.1f}–{100 * high:.1f}" if rate.trials else "–",
        identity["assets"]["kind"],
        "complete" if rate.trials == planned else outcome,
        time.strftime("%Y-%m-%d %H:%M", time.localtime(store.meta("created"))),
    ]


def rebuild(root: Path, name: str, console: Console) -> None:
    """Writes a run's report anew from its store."""
    folder = find_run(root, name)
    with as_damage(folder / STORE), RunStore(folder / STORE, readonly=True) as store:
        summary = report.build(folder, store)
    say(f"success rate {summary.rate}\nreport: {folder / 'report.html'}", console.file)


def print_comparison(names: tuple[str, str], suite: str, result: Comparison, console: Console) -> None:
    """Prints both rates per task and over all, and the paired test."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name, justify in (("task", "left"), (f"A {names[0]}", "right"), (f"B {names[1]}", "right"), ("B − A", "right")):
        table.add_column(name, justify=justify)
    tasks = load_suite(suite).tasks
    for index, (a, b) in result.tasks.items():
        table.add_row(tasks[index].instruction, *_cells(a, b))
    table.add_section()
    table.add_row(f"all {result.pairs} pairs", *_cells(result.a, result.b), style="bold")
    console.print(table)
    for line in result.beside:
        say(f"A and B also differ in {one_line(line)}", console.file)
    if any(result.policy_errors):
        say("policy errors among the failures: A {}, B {}".format(*result.policy_errors), console.file)
    low, high = result.interval
    console.print(
        f"only A succeeded in {result.only_a}, only B in {result.only_b} of {result.pairs} pairs\n"
        f"B − A = {100 * result.difference:+.1f} points, 95 % {100 * low:+.1f} … {100 * high:+.1f}; "
        f"exact McNemar p = {result.p_value:.3g}"
        + (f"\n{result.left_out} episodes that only one run has were left out" if result.left_out else ""),
        highlight=False,
        soft_wrap=True,
    )


def _cells(a: Rate, b: Rate) -> tuple[str, str, str]:
    return f"{100 * a.value:.1f} %", f"{100 * b.value:.1f} %", f"{100 * (b.value - a.value):+.1f}"


def compare_runs(root: Path, first: str, second: str, console: Console) -> None:
    folders = find_run(root, first), find_run(root, second)
    with RunStore(folders[0] / STORE, readonly=True) as a, RunStore(folders[1] / STORE, readonly=True) as b:
        print_comparison((folders[0].name, folders[1].name), a.suite, compare(a, b), console)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="runs", description="Runs on the shared volume.")
    parser.add_argument("--run-dir", type=Path, help="folder of all runs; default: runs on the shared volume")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="a table of all runs")
    commands.add_parser("report", help="write a run's report anew").add_argument("run", help="run id, or 'latest'")
    pair = commands.add_parser("compare", help="test two runs against each other, paired by episode")
    pair.add_argument("a")
    pair.add_argument("b")
    return parser


def main(arguments: list[str]) -> int:
    asked = make_parser().parse_args(arguments)
    root, console = asked.run_dir or Volume().path("runs"), Console(width=None if sys.stdout.isatty() else 160)
    try:
        if asked.command == "list":
            list_runs(root, console)
        elif asked.command == "report":
            rebuild(root, asked.run, console)
        else:
            compare_runs(root, asked.a, asked.b, console)
    except (RunRefused, StoreError, ValueError, OSError) as error:
        say(f"error: {error}", sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
