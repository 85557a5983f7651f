"""Search, order and paging of long tables, and CSV files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from vla_evaluation.report.page import format_csv

T = TypeVar("T")
ROWS = 100  # rows per page


def page(
    request: Request, rows: Sequence[T], filters: Mapping[str, str], count: int = ROWS
) -> tuple[Sequence[T], dict[str, Any]]:
    """Return the requested page of `count` rows, and for the template: the index of the first one, the number of all,
    and the queries of the previous ("newer") and next ("older") page, if they exist.
    """
    requested = request.query_params.get("from", "")
    start = min(int(requested), max(len(rows) - 1, 0)) if requested.isdecimal() and len(requested) < 10 else 0
    turns = {"newer": max(start - count, 0)} if start else {}
    if start + count < len(rows):
        turns["older"] = start + count
    filters = {name: value for name, value in filters.items() if value}
    queries = {name: urlencode({**filters, "from": first}) for name, first in turns.items()}
    return rows[start : start + count], {"start": start, "left": len(rows), "turns": queries}


def has_words(query: str, *texts: object) -> bool:
    """Return whether every word of a query is in the texts, in upper or lower case."""
    text = " ".join(map(str, texts)).lower()
    return all(word in text for word in query.lower().split())


def ordered(rows: Sequence[T], sort: str, keys: Mapping[str, Callable[[T], Any]]) -> Sequence[T]:
    """Return the rows sorted by a column, with "-" before its name descending; those without a value last.

    keys: the sort key of each column; None: no value. An unknown column leaves the order.
    """
    key = keys.get(sort.lstrip("-"))
    if key is None:
        return rows
    having = [row for row in rows if key(row) is not None]
    without = [row for row in rows if key(row) is None]
    return [*sorted(having, key=key, reverse=sort.startswith("-")), *without]


def csv_response(name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Response:
    """Return rows as a CSV download."""
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(format_csv(columns, rows), headers=headers, media_type="text/csv; charset=utf-8")
