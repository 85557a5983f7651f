"""Tables of the runs, recordings and models on the volume; a narrow terminal gets fewer columns."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from vla_common.volume import Volume
from vla_evaluation.report.stats import Rate
from vla_evaluation.runs import PREFIXES
from vla_evaluation.runs.description import state
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
    Column("run"), Column("policy", 4), Column("episodes", right=True), Column("success", right=True),
    Column("95 %", 2, right=True), Column("assets", 3), Column("state"), Column("started", 1),
)  # fmt: skip
SUITES = (
    Column("suite"), Column("success", right=True), Column("95 %", 1, right=True), Column("episodes", right=True),
    Column("assets", 2), Column("run", 3),
)  # fmt: skip
RECORDINGS = (
    Column("recording"), Column("suite", 3), Column("policy", 4), Column("kept", right=True),
    Column("attempts", 2, right=True), Column("size", right=True), Column("state"), Column("started", 1),
)  # fmt: skip
MODELS = (Column("trained model"), Column("lab"), Column("epochs", right=True), Column("trained", 1))


def print_table(columns: Sequence[Column], rows: Sequence[Mapping[str, str]], console: Console) -> None:
    """Print a table with as many columns as fit; a name that is wider than a line continues on the next."""
    cells = [{column.name: single_line(row.get(column.name, "")) for column in columns} for row in rows]
    widths = {c.name: max(len(c.name), *(len(row[c.name]) for row in cells)) for c in columns}
    visible = [*columns]
    while sum(widths[c.name] + GAP for c in visible) - GAP > console.width and max(c.rank for c in visible):
        visible.remove(max(visible, key=lambda column: column.rank))
    lines = [{column.name: column.name for column in columns}, *cells]
    for index, row in enumerate(lines):
        texts = (f"{row[c.name]:{'>' if c.right else '<'}{widths[c.name]}}" for c in visible)
        line = (" " * GAP).join(texts).rstrip()
        console.print(Text(line, style="" if index else "bold"), soft_wrap=True)


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


def run_row(directory: Path) -> dict[str, str]:
    """Return the cells of one run. StoreError if its store cannot be read."""
    with read_run(directory) as store:
        return _run_cells(directory.name, store)


def recording_row(directory: Path) -> dict[str, str]:
    """Return the cells of one recording of demonstrations. StoreError if its store cannot be read."""
    with read_run(directory) as store:
        stored = sum("recording" in row.result for row in store.finished())
        cells = _run_cells(directory.name, store)
    attempts, size = cells["episodes"].partition("/")[0], show_size(size_of(directory))
    return {**cells, "recording": directory.name, "kept": str(stored), "attempts": attempts, "size": size}


def rate_of(store: RunStore) -> Rate:
    """Return the success rate of a run's finished episodes."""
    counts = store.counts()
    return Rate(total(counts, "successes"), total(counts, "done"))


def _run_cells(name: str, store: RunStore) -> dict[str, str]:
    identity, rate, planned = store.meta("identity"), rate_of(store), total(store.counts(), "planned")
    return {
        "run": name,
        "suite": store.suite,
        "policy": identity["policy"]["name"],
        "episodes": f"{rate.trials}/{planned}",
        "success": rate.percent if rate.trials else "–",
        "95 %": rate.percent_interval if rate.trials else "–",
        "assets": identity["assets"]["kind"],
        "state": state(store, rate.trials == planned, time.time()),
        "started": show_time(store.meta("created")),
    }


# --- the course's models, from their file names: PyTorch is not installed here --------------------------------------


@dataclass(frozen=True)
class TrainedModel:
    """A trained model: its directory of weights, and its curves."""

    lab: str
    directory: Path
    curves: Path
    epochs: int
    changed: float  # seconds since the epoch

    @property
    def row(self) -> dict[str, str]:
        """Its cells."""
        cells = {"trained model": self.directory.name, "lab": self.lab, "epochs": str(self.epochs)}
        return {**cells, "trained": show_time(self.changed)}


def find_models(volume: Volume) -> list[TrainedModel]:
    """Return the models that have weights, the last trained one last."""
    models = []
    for lab, prefix in PREFIXES.items():
        pattern = re.compile(rf"{prefix}_(\d+)(_\d+)?\.pt")  # tmodel_04.pt is the state after epoch 4, from 0 on
        for directory in (volume.path("checkpoints") / lab).glob("[!.]*"):
            states = [(match, path) for path in directory.glob("*.pt") if (match := pattern.fullmatch(path.name))]
            if states:
                epochs = max(int(match[1]) + (0 if match[2] else 1) for match, _ in states)
                changed = max(path.stat().st_mtime for _, path in states)
                curves = volume.path("logs") / "tensorboard" / lab / directory.name
                models.append(TrainedModel(lab, directory, curves, epochs, changed))
    return sorted(models, key=lambda model: (model.changed, model.directory.name))
