"""Runs on the volume: `… -m vla_evaluation.runs list | report RUN | compare A B | leaderboard | size … | remove …`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vla_common import endings
from vla_common.counts import plural
from vla_common.volume import Volume, shown
from vla_evaluation import report
from vla_evaluation.report.compare import Comparison, compare
from vla_evaluation.report.stats import Rate
from vla_evaluation.runs import leaderboard, removing
from vla_evaluation.runs.folders import STORE, RunRefused, find_run, find_runs
from vla_evaluation.runs.listing import (
    MODELS,
    RECORDINGS,
    RUNS,
    SUITES,
    Column,
    model_row,
    print_table,
    rate_of,
    recording_row,
    run_row,
)
from vla_evaluation.runs.models import find_models
from vla_evaluation.store.records import StoreError, as_damage
from vla_evaluation.store.runstore import RunStore
from vla_evaluation.terminal import one_line, say


def list_runs(root: Path, console: Console) -> None:
    """Prints a table of the runs under `root`, the latest last."""
    folders = find_runs(root)
    if not folders:
        say(f"no runs in {root}", console.file)
        return
    print_folders(RUNS, folders, run_row, console)


def list_recordings(volume: Volume, console: Console) -> None:
    """Prints a table of the demonstrations that were recorded on the volume; nothing where there are none."""
    if folders := find_runs(volume.path("demonstrations")):
        say(file=console.file)
        print_folders(RECORDINGS, folders, recording_row, console)


def print_folders(
    columns: Sequence[Column], folders: Sequence[Path], row_of: Callable[[Path], dict[str, str]], console: Console
) -> None:
    """Prints a table of folders with a store each, and what is wrong with those that are damaged."""
    rows, problems = [], []
    for folder in folders:
        try:
            rows.append(row_of(folder))
        except (StoreError, OSError) as error:
            rows.append({columns[0].name: folder.name, "state": "damaged"})
            problems.append(f"{folder.name}: {error}")
    print_table(columns, rows, console)
    for problem in problems:
        console.print(Text(one_line(problem), style="red"), soft_wrap=True)


def list_models(volume: Volume, console: Console) -> None:
    """Prints a table of the models that were trained on the volume; nothing where there are none."""
    if models := find_models(volume):
        say(file=console.file)
        print_table(MODELS, [model_row(model) for model in models], console)


def show_suites(root: Path, names: Sequence[str], console: Console) -> None:
    """Prints a table of suites: each run's suite and rate with its interval, and the mean of the suites' rates."""
    rows = [run_row(folder) for folder in (root / name for name in names) if (folder / STORE).is_file()]
    unfinished = [row["suite"] for row in rows if row["state"] != "complete"]
    if not unfinished and len(rows) == len(names):
        mean = sum(rate_of(root / row["run"]).value for row in rows) / len(rows)
        rows.append({"suite": "mean", "success": f"{100 * mean:.1f} %"})
    say(file=console.file)
    print_table(SUITES, rows, console)
    if unfinished:
        say(f"not complete: {', '.join(unfinished)}", console.file)


def rebuild(root: Path, name: str, console: Console) -> None:
    """Writes a run's report anew from its store."""
    folder = find_run(root, name)
    with as_damage(folder / STORE), RunStore(folder / STORE, readonly=True) as store:
        summary = report.build(folder, store)
    say(f"success rate {summary.rate}\nreport: {shown(folder / 'report.html')}", console.file)


def print_comparison(names: tuple[str, str], tasks: Sequence[dict], result: Comparison, console: Console) -> None:
    """Prints both rates per task and over all, and the paired test."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name, justify in (("task", "left"), (f"A {names[0]}", "right"), (f"B {names[1]}", "right"), ("B − A", "right")):
        table.add_column(name, justify=justify)
    for index, (a, b) in result.tasks.items():
        table.add_row(tasks[index]["instruction"], *_cells(a, b))
    table.add_section()
    table.add_row(
        f"all {plural(result.pairs, 'pair')}" if result.pairs > 1 else "the only pair",
        *_cells(result.a, result.b),
        style="bold",
    )
    console.print(table)
    for line in result.warnings:
        say(f"not comparable: {one_line(line)}", console.file)
    for line in result.beside:
        say(f"A and B also differ in {one_line(line)}", console.file)
    if any(result.policy_errors):
        say("policy errors among the failures: A {}, B {}".format(*result.policy_errors), console.file)
    low, high = (f"{100 * end:+.1f}" for end in result.interval)
    test = (
        f"95 % {low} … {high}; exact McNemar p = {result.p_value:.3g}" if result.pairs > 1 else "of one pair: no test"
    )
    console.print(
        f"only A succeeded in {result.only_a}, only B in {result.only_b} of {plural(result.pairs, 'pair')}\n"
        f"B − A = {100 * result.difference:+.1f} points, {test}"
        + (f"\n{plural(result.left_out, 'episode')} that only one run has left out" if result.left_out else ""),
        highlight=False,
        soft_wrap=True,
    )


def _cells(a: Rate, b: Rate) -> tuple[str, str, str]:
    return f"{100 * a.value:.1f} %", f"{100 * b.value:.1f} %", f"{100 * (b.value - a.value):+.1f}"


def compare_runs(root: Path, first: str, second: str, force: bool, console: Console) -> None:
    folders = find_run(root, first), find_run(root, second)
    with RunStore(folders[0] / STORE, readonly=True) as a, RunStore(folders[1] / STORE, readonly=True) as b:
        print_comparison((folders[0].name, folders[1].name), a.described()["tasks"], compare(a, b, force), console)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="runs", description="Runs on the shared volume.")
    parser.add_argument("--run-dir", type=Path, help="folder of all runs; default: runs on the shared volume")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="a table of all runs, recordings and trained models")
    rebuilt = commands.add_parser("report", help="write a run's report anew")
    rebuilt.add_argument("run", help="name, the beginning of one, or 'latest'")
    for name, what in (("size", "say what such things take on disk"), ("remove", "delete them, without asking")):
        commands.add_parser(name, help=what).add_argument("names", nargs="+", help="names, or beginnings of them")
    table = commands.add_parser("table", help="rates of runs of several suites, and their mean")
    table.add_argument("names", nargs="+", help="names of runs")
    board = commands.add_parser("leaderboard", help="policies × suites")
    board.add_argument("suites", nargs="*", help="only these; default: all that have runs")
    for flag in ("--csv", "--html"):
        board.add_argument(flag, nargs=2, metavar=("FOLDER", "NAME"), help=f"also write it as {flag[2:].upper()}")
    pair = commands.add_parser("compare", help="test two runs against each other, paired by episode")
    pair.add_argument("a")
    pair.add_argument("b")
    pair.add_argument("--force", action="store_true", help="also where they are not comparable")
    return parser


def main(arguments: list[str]) -> int:
    asked = make_parser().parse_args(arguments)
    volume, console = Volume(), endings.console(width=None if sys.stdout.isatty() else 160)
    root = asked.run_dir or volume.path("runs")
    try:
        if asked.command == "list":
            list_runs(root, console)
            list_recordings(volume, console)
            list_models(volume, console)
        elif asked.command in ("size", "remove"):
            act = removing.remove if asked.command == "remove" else removing.show
            act(removing.find_things(root, volume, asked.names))
        elif asked.command == "table":
            show_suites(root, asked.names, console)
        elif asked.command == "report":
            rebuild(root, asked.run, console)
        elif asked.command == "leaderboard":
            files = {suffix: Path(*given) for suffix in ("csv", "html") if (given := getattr(asked, suffix))}
            return leaderboard.show(root, asked.suites, files, console)
        else:
            compare_runs(root, asked.a, asked.b, asked.force, console)
    except (RunRefused, StoreError, ValueError) as error:
        say(f"error: {error}", sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    endings.run(main, sys.argv[1:])
