"""The leaderboard of the runs in a folder: read, printed, written as CSV and as a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from vla_common.counts import plural
from vla_common.volume import shown
from vla_evaluation.report import leaderboard, page
from vla_evaluation.report.leaderboard import COLUMNS, Board, Cell, Table
from vla_evaluation.runs.folders import STORE, find_runs
from vla_evaluation.runs.listing import GAP, Column, print_table
from vla_evaluation.store.records import StoreError, as_damage
from vla_evaluation.store.runstore import RunStore
from vla_evaluation.terminal import one_line, plain, say

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would calculate when a text begins so
LONG = (
    Column("policy"),
    Column("suite"),
    Column("success", right=True),
    Column("95 %", right=True),
    Column("episodes", 1, right=True),
)  # for a terminal that is too narrow for a column per suite


def read_board(root: Path, suites: Sequence[str]) -> Board:
    """Returns the board of the runs under `root`. ValueError for a suite that none of them is of."""
    entries, unread = [], {}
    for folder in find_runs(root):
        try:
            path = folder / STORE
            with as_damage(path), RunStore(path, readonly=True) as store:
                entries.append(leaderboard.read(folder.name, store))
        except (StoreError, OSError) as error:
            unread[folder.name] = f"it cannot be read: {one_line(error)}"
    return leaderboard.board(entries, unread, suites)


def show(root: Path, suites: Sequence[str], files: Mapping[str, Path], console: Console) -> int:
    """Prints the board of the runs under `root` and writes the files, by suffix; returns the exit code."""
    if not find_runs(root):
        say(f"no runs in {root}; `./lab eval SUITE` makes one", console.file)
        return 2 if files else 0
    board = read_board(root, suites)
    print_board(board, console)
    writers = {"csv": as_csv, "html": page.render_board}
    for suffix, path in files.items():
        _write(path, writers[suffix](board))
        say(f"{suffix.upper()}: {shown(path)}", console.file)
    return 0


def print_board(board: Board, console: Console) -> None:
    """Prints every table under what its lines have in common, and which runs stand in none."""
    for table in board.tables:
        for line in heading(table):
            console.print(Text(one_line(line), style="dim"), soft_wrap=True)
        print_suites(table, console)
        print_kinds(table, console)
        say(file=console.file)
    if not board.tables:
        say("no complete run to show", console.file)
    if board.left_out:
        say(f"left out: {plural(len(board.left_out), 'run')}", console.file)
    for name, why in board.left_out:
        say(f"  {name}: {one_line(why)}", console.file)


def heading(table: Table) -> list[str]:
    """Returns what all lines of a table have in common, in two lines."""
    words = table.words
    first = [f"profile {words['profile']}", f"assets {words['assets']}", f"chunks: {words['chunks']}"]
    first += [f"step limits: {words['step limits']}", f"tasks: {words['tasks']}", f"seed {words['seed']}"]
    second = [f"benchmark {words['benchmark']}", f"steps/s {words['steps/s']}"]
    second += [f"wait and pictures {words['wait and pictures']}", words["versions"]]
    return [", ".join(first), ", ".join(filter(None, second))]


def print_suites(table: Table, console: Console) -> None:
    """Prints a line per policy and a column per suite; where that is too wide, a line for each of both."""
    means = [table.mean(line) for line in table.lines]
    names = [*table.suites, *(["mean"] if any(mean is not None for mean in means) else [])]
    rows = [
        {
            "policy": line.label,
            **{suite: cell_in_words(cell) for suite, cell in line.cells.items()},
            "mean": "" if mean is None else f"{100 * mean:.1f} %",
        }
        for line, mean in zip(table.lines, means, strict=True)
    ]
    columns = [Column("policy"), *(Column(name, right=True) for name in names)]
    widths = (max(len(name), *(len(one_line(row.get(name, ""))) for row in rows)) for name in ("policy", *names))
    if sum(widths) + GAP * len(names) <= console.width:
        print_table(columns, rows, console)
    else:
        print_table(LONG, [long for line in table.lines for long in _long(line, table.mean(line))], console)
    errors = sum(cell.policy_errors for line in table.lines for cell in line.cells.values())
    if errors:
        say(f"policy errors among the failures: {errors}", console.file)


def print_kinds(table: Table, console: Console) -> None:
    """Prints for every suite with kinds of task a line per policy and kind."""
    for suite in table.kinds():
        say(f"{suite}, by kind of task:", console.file)
        rows = [
            {"policy": line.label, "kind": kind, **_figures(cell)}
            for line in table.lines
            if suite in line.cells
            for kind, cell in line.cells[suite].kinds.items()
        ]
        print_table((LONG[0], Column("kind"), *LONG[2:]), rows, console)


def _figures(cell: Cell) -> dict[str, str]:
    return {"success": f"{100 * cell.rate.value:.1f} %", "95 %": _interval(cell), "episodes": str(cell.rate.trials)}


def _long(line: leaderboard.Line, mean: float | None) -> list[dict[str, str]]:
    rows = [
        {
            "policy": line.label,
            "suite": suite,
            **_figures(cell),
        }
        for suite, cell in line.cells.items()
    ]
    return rows if mean is None else [*rows, {"policy": line.label, "suite": "mean", "success": f"{100 * mean:.1f} %"}]


def cell_in_words(cell: Cell) -> str:
    """Returns rate, 95 % interval and number of episodes: "95.0 % (76.4–99.1) of 20"."""
    return f"{100 * cell.rate.value:.1f} % ({_interval(cell)}) of {cell.rate.trials}"


def _interval(cell: Cell) -> str:
    low, high = cell.rate.interval
    return f"{100 * low:.1f}–{100 * high:.1f}"


def as_csv(board: Board) -> str:
    """Returns the figures as CSV; a text that a spreadsheet would run as a formula is quoted."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_plain(row[column]) for column in COLUMNS] for row in board.rows())
    return out.getvalue()


def _plain(value: object) -> object:
    if isinstance(value, str):
        return plain(f"'{value}" if value.startswith(FORMULA) else value)
    return "" if value is None else value


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8", errors="backslashreplace")
    partial.replace(path)
