"""A run's report: report.html for people, summary.json and episodes.jsonl for programs. All come from the run store."""

from __future__ import annotations

import json
from pathlib import Path

from vla_evaluation.report.data import Summary, load
from vla_evaluation.report.page import render
from vla_evaluation.store.runstore import RunStore


def build(folder: Path, store: RunStore) -> Summary:
    """Writes the three files into the run's folder, each whole or not at all, and returns the summary."""
    summary = load(folder, store)
    _write(folder / "episodes.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in summary.rows()))
    _write(folder / "summary.json", json.dumps(summary.to_json(), indent=2, ensure_ascii=False) + "\n")
    _write(folder / "report.html", render(folder, summary))
    return summary


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8", errors="backslashreplace")  # half a character in a policy's name
    partial.replace(path)
