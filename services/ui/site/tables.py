"""Tables: long ones in parts, and those for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from vla_common.endings import plain

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would calculate when a text begins so

ROWS = 100  # at a time: a browser draws thousands slowly


def start(asked: str, count: int) -> int:
    """Return which row a list begins with: the one asked for, as far as there is one."""
    return min(int(asked), max(count - 1, 0)) if asked.isdecimal() and len(asked) < 10 else 0


def turns(start: int, count: int) -> dict[str, int]:
    """Return where the part before a list's shown one begins ("newer"), and the one after, where there are any."""
    before = {"newer": max(start - ROWS, 0)} if start else {}
    return before | ({"older": start + ROWS} if start + ROWS < count else {})


def as_csv(name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Response:
    """Return a CSV file of that name as an answer; a text that a spreadsheet would run as a formula is quoted."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(columns)
    writer.writerows([_plain(row.get(column)) for column in columns] for row in rows)
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(out.getvalue(), headers=headers, media_type="text/csv; charset=utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return plain(f"'{value}" if value.startswith(FORMULA) else value)
    return "" if value is None else value
