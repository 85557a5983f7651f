"""What the lab's pages ask about data sets: JSON, films in parts, and the one thing that is written: marks."""

from __future__ import annotations

import json
import re
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.reports.api import told
from services.reports.files import NAME, Missing
from services.reports.open_file import OpenFile
from services.reports.sets import Sets

BODY_BYTES = 2**16
AT = "/api/data/{name}"


def routes(sets: Sets) -> list[Route]:
    """Returns the routes below /api/data. What is wrong is told as {"detail": …}."""

    def listed(request: Request) -> Response:
        return JSONResponse({"sets": sets.rows()})

    def one(request: Request) -> Response:
        return JSONResponse(sets.one(_name(request)))

    def episode(request: Request) -> Response:
        return JSONResponse(sets.episode(_name(request), _index(request)))

    def film(request: Request) -> Response:
        return OpenFile(sets.open_film(_name(request), _index(request), request.path_params["camera"]), "film.mp4")

    async def mark(request: Request) -> Response:
        if request.headers.get("content-type", "").split(";")[0] != "application/json":
            # another site's page cannot send this type without asking first, and nobody answers that question
            return JSONResponse({"detail": "expected application/json"}, 415)
        try:
            bad, good = _asked(await _body(request))
        except ValueError as error:
            return JSONResponse({"detail": str(error)}, 400)
        return JSONResponse(await run_in_threadpool(sets.mark, _name(request), bad, good))

    return [
        Route("/api/data", told(listed)),
        Route(AT, told(one)),
        Route(f"{AT}/episodes/{{index}}", told(episode)),
        Route(f"{AT}/films/{{index}}/{{camera}}.mp4", told(film)),
        Route(f"{AT}/marks", told(mark), methods=["POST"]),
    ]


async def _body(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES:
            raise ValueError(f"the body is too large; expected at most {BODY_BYTES} bytes")
    return body


def _asked(body: bytes) -> tuple[list[int], list[int]]:
    """Returns which episodes are to be marked, and which no longer. Raises ValueError for anything else."""
    try:
        asked: Any = json.loads(body)
        found = asked.get("bad", []), asked.get("good", [])
    except (ValueError, AttributeError, RecursionError):
        found = (None, None)
    if not all(isinstance(one, list) and all(type(each) is int for each in one) for one in found):
        raise ValueError('expected {"bad": [episodes], "good": [episodes]}')
    return found


def _name(request: Request) -> str:
    name = request.path_params["name"]
    if not NAME.fullmatch(name):
        raise Missing(f"{name[:80]!r} is no data set's name")
    return name


def _index(request: Request) -> int:
    index = request.path_params["index"]
    if not re.fullmatch("[0-9]{1,9}", index):
        raise Missing(f"{index[:80]!r} is not an episode")
    return int(index)
