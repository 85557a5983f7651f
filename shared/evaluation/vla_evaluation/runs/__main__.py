"""Runs on the volume: `… -m vla_evaluation.runs list | report RUN | compare A B | verdict RUN MODEL | …`."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vla_common import entrypoint
from vla_common.anchored import require_no_links
from vla_common.counts import plural
from vla_common.volume import Volume, display_path
from vla_evaluation import report
from vla_evaluation.report.compare import Comparison, compare
from vla_evaluation.report.stats import Rate
from vla_evaluation.runs import STORE, leaderboard, listing, reproduction
from vla_evaluation.runs.directories import RunUnusable, by_beginning, find_run, find_runs, lock
from vla_evaluation.store.records import StoreError
from vla_evaluation.store.runstore import RunStore, read_run
from vla_evaluation.terminal import say, single_line


def list_runs(root: Path, console: Console) -> None:
    """Print a table of the runs under `root`, the latest last."""
    if directories := find_runs(root):
        print_directories(listing.RUNS, directories, listing.run_row, console)
    else:
        say(f"no runs in {root}", console.file)


def print_directories(
    columns: Sequence[listing.Column],
    directories: Sequence[Path],
    row_of: Callable[[Path], dict[str, str]],
    console: Console,
) -> None:
    """Print a table of directories with a store each, and the errors of those that are damaged."""
    rows, problems = [], []
    for directory in directories:
        try:
            rows.append(row_of(directory))
        except (StoreError, OSError) as error:
            rows.append({columns[0].name: directory.name, "state": "damaged"})
            problems.append(f"{directory.name}: {error}")
    listing.print_table(columns, rows, console)
    for problem in problems:
        console.print(Text(single_line(problem), style="red"), soft_wrap=True)


def show_or_delete(root: Path, volume: Volume, names: Sequence[str], delete: bool) -> None:
    """Print size and path of runs, recordings and trained models, or delete them without a question.

    `names` are names, beginnings of names, or "latest". RunUnusable for one that matches nothing, and for a run or a
    recording that a process works on; nothing is deleted unless all are found.
    """
    demonstrations = volume.path("demonstrations")
    stored: dict[str, tuple[str, list[Path]]] = {}
    for model in listing.find_models(volume):
        stored[model.directory.name] = f"trained {model.lab}", [model.directory, model.curves]
    stored |= {path.name: ("recording", [demonstrations / path.name]) for path in find_runs(demonstrations)}
    stored |= {path.name: ("run", [root / path.name]) for path in find_runs(root)}
    items = {}
    for name in names:
        try:
            match = find_run(root, name).name if name == "latest" else by_beginning(name, list(stored))
        except ValueError as error:
            raise RunUnusable(f"{name!r} {error}") from error
        items[match] = stored[match]
    for name, (kind, directories) in items.items():
        size = listing.show_size(sum(map(listing.size_of, directories)))
        if not delete:
            say(f"{kind} {single_line(name)}: {size} in {directories[0]}")
            continue
        for directory in filter(Path.is_dir, directories):
            require_no_links(directory)
            with lock(directory) if kind in ("run", "recording") else nullcontext():
                # no list shows a name that begins with a dot
                deleted = directory.rename(directory.with_name(f".{directory.name}.deleted"))
            shutil.rmtree(deleted)
        say(f"deleted {kind} {single_line(name)}: {size} freed")


def show_suites(root: Path, names: Sequence[str], console: Console) -> None:
    """Print a table of suites: each run's suite and rate with its interval, and the mean of the suites' rates."""
    directories = [root / name for name in names if (root / name / STORE).is_file()]
    rows, rates = [listing.run_row(directory) for directory in directories], []
    for directory in directories:
        with read_run(directory, check=False) as store:
            rates.append(listing.rate_of(store).value)
    unfinished = [row["suite"] for row in rows if row["state"] != "complete"]
    if not unfinished and len(rows) == len(names):
        rows.append({"suite": "mean", "success": f"{100 * sum(rates) / len(rates):.1f} %"})
    say(file=console.file)
    listing.print_table(listing.SUITES, rows, console)
    if unfinished:
        say(f"not complete: {', '.join(unfinished)}", console.file)


def print_comparison(
    names: tuple[str, str], tasks: Sequence[dict[str, Any]], result: Comparison, console: Console
) -> None:
    """Print both rates per task and over all, and the paired test."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("task")
    for name in (f"A {names[0]}", f"B {names[1]}", "B − A"):
        table.add_column(name, justify="right")

    def cells(a: Rate, b: Rate) -> tuple[str, str, str]:
        return a.percent, b.percent, f"{100 * (b.value - a.value):+.1f}"

    for index, (a, b) in result.tasks.items():
        table.add_row(tasks[index]["instruction"], *cells(a, b))
    table.add_section()
    pairs = plural(result.pairs, "pair")
    table.add_row(f"all {pairs}" if result.pairs > 1 else "the only pair", *cells(result.a, result.b), style="bold")
    console.print(table)
    for line in result.warnings:
        say(f"not comparable: {single_line(line)}", console.file)
    for line in result.beside:
        say(f"A and B also differ in {single_line(line)}", console.file)
    if any(result.policy_errors):
        say("policy errors among the failures: A {}, B {}".format(*result.policy_errors), console.file)
    test = "one pair is too few for a test"
    if result.pairs > 1:
        low, high = (f"{100 * end:+.1f}" for end in result.interval)
        test = f"95 % {low} … {high}; exact McNemar p = {result.p_value:.3g}"
    console.print(
        f"only A succeeded in {result.only_a}, only B in {result.only_b} of {pairs}\n"
        f"B − A = {100 * result.difference:+.1f} points, {test}"
        + (f"\nleft out: {plural(result.left_out, 'episode')} that only one run has" if result.left_out else ""),
        highlight=False,
        soft_wrap=True,
    )


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="runs", description="Runs on the shared volume.")
    parser.add_argument("--run-dir", type=Path, help="directory of all runs; default: runs on the shared volume")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="a table of all runs, recordings and trained models")
    report_parser = commands.add_parser("report", help="write a run's report again")
    report_parser.add_argument("run", help="name, the beginning of a name, or 'latest'")
    for name, text in (("size", "print their sizes on disk"), ("remove", "delete them without confirmation")):
        commands.add_parser(name, help=text).add_argument("names", nargs="+", help="names, or beginnings of them")
    table = commands.add_parser("table", help="rates of runs of several suites, and their mean")
    table.add_argument("names", nargs="+", help="names of runs")
    board = commands.add_parser("leaderboard", help="policies × suites")
    board.add_argument("suites", nargs="*", help="only these; default: all that have runs")
    for flag in ("--csv", "--html"):
        board.add_argument(flag, nargs=2, metavar=("DIR", "NAME"), help=f"also write it as {flag[2:].upper()}")
    verdict = commands.add_parser("verdict", help="test a run against a published figure of its profile")
    verdict.add_argument("run", help="name")
    verdict.add_argument("model", help="the published row's model")
    pair = commands.add_parser("compare", help="test two runs against each other, paired by episode")
    pair.add_argument("a")
    pair.add_argument("b")
    pair.add_argument("--force", action="store_true", help="compare them even if they are not comparable")
    return parser


def main(arguments: list[str]) -> int:
    options = make_parser().parse_args(arguments)
    volume, console = Volume(), entrypoint.console(width=None if sys.stdout.isatty() else 160)
    root = options.run_dir or volume.path("runs")
    try:
        if options.command == "list":
            list_runs(root, console)
            if directories := find_runs(volume.path("demonstrations")):
                say(file=console.file)
                print_directories(listing.RECORDINGS, directories, listing.recording_row, console)
            if models := listing.find_models(volume):
                say(file=console.file)
                listing.print_table(listing.MODELS, [model.row for model in models], console)
        elif options.command in ("size", "remove"):
            show_or_delete(root, volume, options.names, options.command == "remove")
        elif options.command == "table":
            show_suites(root, options.names, console)
        elif options.command == "report":
            directory = find_run(root, options.run)
            with read_run(directory) as store:
                summary = report.build(directory, store)
            say(f"success rate {summary.rate}\nreport: {display_path(directory / 'report.html')}", console.file)
        elif options.command == "leaderboard":
            files = {suffix: Path(*parts) for suffix in ("csv", "html") if (parts := getattr(options, suffix))}
            return leaderboard.show(root, options.suites, files, console)
        elif options.command == "verdict":
            reproduction.judge(find_run(root, options.run), options.model, console)
        else:
            first, second = find_run(root, options.a), find_run(root, options.b)
            with RunStore(first / STORE, readonly=True) as a, RunStore(second / STORE, readonly=True) as b:
                tasks, result = a.described()["tasks"], compare(a, b, options.force)
            print_comparison((first.name, second.name), tasks, result, console)
    except (RunUnusable, StoreError, ValueError) as error:
        say(f"error: {error}", sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    entrypoint.run(main, sys.argv[1:])
