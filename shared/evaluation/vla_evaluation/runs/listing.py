"""Tables of the runs, recordings and models on the volume; a narrow terminal gets fewer columns."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from vla_evaluation.report.stats import Rate
from vla_evaluation.runs.models import TrainedModel
from vla_evaluation.store.records import total
from vla_evaluation.store.runstore import RunStore, read_run
from vla_evaluation.terminal import single_line

GAP = 2


@dataclass(frozen=True)
class Column:
    """A column of a table. rank: the highest is left out first on a narrow terminal; 0 always stays."""

    name: str
    rank: int = 0
    right: bool = False


RUNS = (
    Column("run"),
    Column("policy", 4),
    Column("episodes", right=True),
    Column("success", right=True),
    Column("95 %", 2, right=True),
    Column("assets", 3),
    Column("state"),
    Column("started", 1),
)
SUITES = (
    Column("suite"),
    Column("success", right=True),
    Column("95 %", 1, right=True),
    Column("episodes", right=True),
    Column("assets", 2),
    Column("run", 3),
)
RECORDINGS = (
    Column("recording"),
    Column("suite", 3),
    Column("policy", 4),
    Column("kept", right=True),
    Column("attempts", 2, right=True),
    Column("size", right=True),
    Column("state"),
    Column("started", 1),
)
MODELS = (Column("trained model"), Column("lab"), Column("epochs", right=True), Column("trained", 1))


def print_table(columns: Sequence[Column], rows: Sequence[Mapping[str, str]], console: Console) -> None:
    """Print a table with as many columns as fit; a name that is wider than a line continues on the next."""
    cells = [{column.name: single_line(row.get(column.name, "")) for column in columns} for row in rows]
    widths = {c.name: max(len(c.name), *(len(row[c.name]) for row in cells)) for c in columns}
    visible = [*columns]
    while sum(widths[c.name] + GAP for c in visible) - GAP > console.width and max(c.rank for c in visible):
        visible.remove(max(visible, key=lambda column: column.rank))
    heading = {column.name: column.name for column in columns}
    console.print(Text(_line(visible, heading, widths), style="bold"), soft_wrap=True)
    for row in cells:
        console.print(Text(_line(visible, row, widths)), soft_wrap=True)


def _line(columns: Iterable[Column], row: Mapping[str, str], widths: Mapping[str, int]) -> str:
    cells = (f"{row[c.name]:{'>' if c.right else '<'}{widths[c.name]}}" for c in columns)
    return (" " * GAP).join(cells).rstrip()


def size_of(directory: Path) -> int:
    """Return the bytes of a directory's files."""
    return sum(file.lstat().st_size for file in directory.rglob("*"))


def show_size(size: int) -> str:
    """Return a size as text: "12.0 MB", "3.4 GB"."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def show_time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def model_row(model: TrainedModel) -> dict[str, str]:
    """Return the cells of one trained model."""
    cells = {"trained model": model.name, "lab": model.lab, "epochs": str(model.epochs)}
    return {**cells, "trained": show_time(model.changed)}


def run_row(directory: Path) -> dict[str, str]:
    """Return the cells of one run. StoreError if its store cannot be read."""
    with read_run(directory) as store:
        return _run_cells(directory.name, store)


def recording_row(directory: Path) -> dict[str, str]:
    """Return the cells of one recording of demonstrations. StoreError if its store cannot be read."""
    with read_run(directory) as store:
        stored = sum("recording" in row.result for row in store.finished())
        cells = _run_cells(directory.name, store)
    attempts = cells["episodes"].partition("/")[0]
    size = show_size(size_of(directory))
    return {**cells, "recording": directory.name, "kept": str(stored), "attempts": attempts, "size": size}


def rate_of(store: RunStore) -> Rate:
    """Return the success rate of a run's finished episodes."""
    counts = store.counts()
    return Rate(total(counts, "successes"), total(counts, "done"))


def _run_cells(name: str, store: RunStore) -> dict[str, str]:
    identity, invocations, rate = store.meta("identity"), store.invocations(), rate_of(store)
    planned = total(store.counts(), "planned")
    outcome = (invocations[-1]["outcome"] or "unfinished") if invocations else "not started"
    return {
        "run": name,
        "suite": store.suite,
        "policy": identity["policy"]["name"],
        "episodes": f"{rate.trials}/{planned}",
        "success": rate.percent if rate.trials else "–",
        "95 %": rate.percent_interval if rate.trials else "–",
        "assets": identity["assets"]["kind"],
        "state": "complete" if rate.trials == planned else outcome,
        "started": show_time(store.meta("created")),
    }
