"""A run's report: report.html, summary.json and episodes.jsonl, all from the run store."""

from __future__ import annotations

import json
from pathlib import Path

from vla_evaluation.report.data import Summary
from vla_evaluation.report.page import render
from vla_evaluation.store.files import write_text
from vla_evaluation.store.runstore import RunStore


def build(directory: Path, store: RunStore) -> Summary:
    """Write the three files into the run's directory, each complete or not at all, and return the summary."""
    summary = Summary(directory, store)
    rows = (json.dumps(row, ensure_ascii=False) + "\n" for row in summary.rows())
    write_text(directory / "episodes.jsonl", "".join(rows))
    write_text(directory / "summary.json", json.dumps(summary.to_json(), indent=2, ensure_ascii=False) + "\n")
    write_text(directory / "report.html", render(directory, summary))
    return summary
