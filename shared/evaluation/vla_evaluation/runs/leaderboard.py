"""The leaderboard of the runs in a directory: read, printed, written as CSV and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from vla_common.counts import plural
from vla_common.volume import display_path
from vla_evaluation.report import leaderboard, page
from vla_evaluation.report.leaderboard import COLUMNS, Json, kinds
from vla_evaluation.report.stats import Rate
from vla_evaluation.runs.directories import find_runs
from vla_evaluation.runs.listing import GAP, Column, print_table
from vla_evaluation.store.files import write_text
from vla_evaluation.store.records import StoreError
from vla_evaluation.store.runstore import read_run
from vla_evaluation.terminal import say, single_line

# for a terminal that is too narrow for a column per suite
LONG = (
    Column("policy"), Column("suite"), Column("success", right=True), Column("95 %", right=True),
    Column("episodes", 1, right=True),
)  # fmt: skip


def read_board(root: Path, suites: Sequence[str]) -> Json:
    """Return the board of the runs under `root`. ValueError for a suite without runs."""
    entries, unread = [], {}
    for directory in find_runs(root):
        try:
            with read_run(directory) as store:
                entries.append(leaderboard.read(directory.name, store))
        except (StoreError, OSError) as error:
            unread[directory.name] = f"cannot be read: {single_line(error)}"
    return leaderboard.board(entries, unread, suites)


def show(root: Path, suites: Sequence[str], files: Mapping[str, Path], console: Console) -> int:
    """Print the board of the runs under `root` and write the files, by suffix; return the exit code."""
    if not find_runs(root):
        say(f"no runs in {root}; `./lab eval SUITE` makes one", console.file)
        return 2 if files else 0
    board = read_board(root, suites)
    print_board(board, console)
    for suffix, path in files.items():
        is_csv = suffix == "csv"
        write_text(path, page.format_csv(COLUMNS, board["rows"]) if is_csv else page.render_board(board))
        say(f"{suffix.upper()}: {display_path(path)}", console.file)
    return 0


def print_board(board: Json, console: Console) -> None:
    """Print every table under its settings, and the excluded runs."""
    for table in board["tables"]:
        for line in heading(table):
            console.print(Text(single_line(line), style="dim"), soft_wrap=True)
        print_suites(table, console)
        for suite in kinds(table):
            say(f"{suite}, by kind of task:", console.file)
            rows = [
                {"policy": line["label"], "kind": kind, **_figures(cell)}
                for line in table["lines"]
                if suite in line["cells"]
                for kind, cell in line["cells"][suite]["kinds"].items()
            ]
            print_table((LONG[0], Column("kind"), *LONG[2:]), rows, console)
        say(file=console.file)
    if not board["tables"]:
        say("no complete run found", console.file)
    if board["left_out"]:
        say(f"left out: {plural(len(board['left_out']), 'run')}", console.file)
    for entry in board["left_out"]:
        say(f"  {entry['run']}: {single_line(entry['why'])}", console.file)


def heading(table: Json) -> list[str]:
    """Return a table's settings in two lines."""
    labels = table["words"]
    first = [f"profile {labels['profile']}", f"assets {labels['assets']}", f"chunks: {labels['chunks']}"]
    first += [f"step limits: {labels['step limits']}", f"tasks: {labels['tasks']}", f"seed {labels['seed']}"]
    second = [f"{name} {labels[name]}" for name in ("benchmark", "steps/s", "wait and images")]
    return [", ".join(first), ", ".join(filter(None, (*second, labels["versions"])))]


def print_suites(table: Json, console: Console) -> None:
    """Print a line per policy and a column per suite; on a narrow terminal a line per policy and suite."""
    lines = table["lines"]
    means = ["" if line["mean"] is None else f"{100 * line['mean']:.1f} %" for line in lines]
    names = [*table["suites"], *(["mean"] if any(means) else [])]
    rows = []
    for line, mean in zip(lines, means, strict=True):
        figures = {suite: _figures(cell) for suite, cell in line["cells"].items()}
        texts = {suite: f"{each['success']} ({each['95 %']}) of {each['episodes']}" for suite, each in figures.items()}
        rows.append({"policy": line["label"], "mean": mean, **texts})
    widths = (max(len(name), *(len(single_line(row.get(name, ""))) for row in rows)) for name in ("policy", *names))
    if sum(widths) + GAP * len(names) <= console.width:
        print_table([Column("policy"), *(Column(name, right=True) for name in names)], rows, console)
    else:
        rows = []
        for line, mean in zip(lines, means, strict=True):
            policy = {"policy": line["label"]}
            rows += [{**policy, "suite": suite, **_figures(cell)} for suite, cell in line["cells"].items()]
            if mean:
                rows.append({**policy, "suite": "mean", "success": mean})
        print_table(LONG, rows, console)
    errors = sum(cell["policy_errors"] for line in lines for cell in line["cells"].values())
    if errors:
        say(f"policy errors among the failures: {errors}", console.file)


def _figures(cell: Json) -> dict[str, str]:
    rate = Rate(cell["successes"], cell["done"])
    return {"success": rate.percent, "95 %": rate.percent_interval, "episodes": str(rate.trials)}
