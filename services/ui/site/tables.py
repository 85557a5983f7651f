"""Paging of long tables, and CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from vla_common.entrypoint import plain

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # beginnings that a spreadsheet treats as a formula

ROWS = 100  # rows per page


def start(requested: str, count: int) -> int:
    """Return the index of the first row, limited to the number of rows."""
    return min(int(requested), max(count - 1, 0)) if requested.isdecimal() and len(requested) < 10 else 0


def turns(start: int, count: int) -> dict[str, int]:
    """Return the first rows of the previous ("newer") and next ("older") page, if they exist."""
    before = {"newer": max(start - ROWS, 0)} if start else {}
    return before | ({"older": start + ROWS} if start + ROWS < count else {})


def as_csv(name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Response:
    """Return rows as a CSV download; texts that look like a formula are quoted."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(columns)
    writer.writerows([_relative_message(row.get(column)) for column in columns] for row in rows)
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(out.getvalue(), headers=headers, media_type="text/csv; charset=utf-8")


def _relative_message(value: Any) -> Any:
    if isinstance(value, str):
        return plain(f"'{value}" if value.startswith(FORMULA) else value)
    return "" if value is None else value
