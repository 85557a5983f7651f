"""The pages about data sets. What they show they ask the service `reports`, which keeps the marks, too."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlencode

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from services.ui.site import paging
from services.ui.site.bodies import Refused, read
from services.ui.site.site import Site
from services.ui.site.upstream import Away

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
SHOWN = ("all", "good", "bad")
MARKS = ("bad", "good")
SLOW_S = 60.0  # the size of a set of many files is counted once


def routes(site: Site) -> list[BaseRoute]:
    """Returns the pages' routes."""
    reports = site.services["reports"]

    async def listed(request: Request) -> Response:
        return site.render(request, "data/list.html.j2", sets=(await reports.json("/api/data", timeout=SLOW_S))["sets"])

    async def one(request: Request) -> Response:
        found = await reports.json(_path(request), timeout=SLOW_S)
        asked = {name: request.query_params.get(name, "") for name in ("task", "show")}
        left = _chosen(found["episodes_told"], **asked)
        start = paging.start(request.query_params.get("from", ""), len(left))
        turns = {word: urlencode({**asked, "from": at}) for word, at in paging.turns(start, len(left)).items()}
        return site.render(
            request, "data/set.html.j2", found=found, episodes=left[start : start + paging.ROWS], start=start,
            left=len(left), turns=turns, ways=SHOWN, asked=asked, here=f"{request.url.path}?{request.url.query}",
        )  # fmt: skip

    async def episode(request: Request) -> Response:
        index = _index(request)
        found = await reports.json(_path(request), timeout=SLOW_S)
        shown = await reports.json(f"{_path(request)}/episodes/{index}", timeout=SLOW_S)
        order = [each["episode"] for each in found["episodes_told"]]
        place = order.index(index)
        around = {"before": order[place - 1 : place] if place else [], "after": order[place + 1 : place + 2]}
        return site.render(request, "data/episode.html.j2", found=found, shown=shown, **around)

    async def film(request: Request) -> Response:
        index, camera = _index(request), request.path_params["camera"]
        if not re.fullmatch(NAME, camera):
            raise Away("reports", f"{camera[:80]!r} is no camera's name", 404)
        return await reports.passed(request, f"{_path(request)}/films/{index}/{camera}.mp4")

    async def mark(request: Request) -> Response:
        try:
            form = parse_qs((await read(request.receive)).decode("utf-8", "replace"))
        except Refused as error:
            return JSONResponse({"detail": error.why}, error.status)
        what, episodes = form.get("what", [""])[0], form.get("episode", [])
        if what not in MARKS or not all(re.fullmatch(r"\d{1,9}", each) for each in episodes):
            return JSONResponse({"detail": "expected what=bad or what=good, and episode=NUMBER"}, 400)
        await reports.json(
            f"{_path(request)}/marks", "POST", json={what: [int(each) for each in episodes]}, timeout=SLOW_S
        )
        (one,) = episodes if len(episodes) == 1 and "one" in form else ("",)
        name = request.path_params["name"]
        return RedirectResponse(f"/data/{name}/{one}" if one else f"/data/{name}?show={what}", 303)

    return [
        Route("/data", listed),
        Route("/data/{name}", one),
        Route("/data/{name}/marks", mark, methods=["POST"]),
        Route("/data/{name}/{index}", episode),
        Route("/data/{name}/films/{index}/{camera}.mp4", film),
    ]


def _path(request: Request) -> str:
    """Returns where the service answers for the data set of a request's path."""
    name = request.path_params["name"]
    if not re.fullmatch(NAME, name):
        raise Away("reports", f"{name[:80]!r} is no name that the lab gives", 404)
    return f"/api/data/{name}"


def _index(request: Request) -> int:
    index = request.path_params["index"]
    if not re.fullmatch("[0-9]{1,9}", index):
        raise Away("reports", f"{index[:80]!r} is not an episode", 404)
    return int(index)


def _chosen(episodes: list[dict[str, Any]], task: str, show: str) -> list[dict[str, Any]]:
    """Returns the episodes that the filters leave."""
    wanted = {"good": (False,), "bad": (True,)}.get(show, (False, True))
    return [one for one in episodes if one["bad"] in wanted and (not task or one["task"] == task)]
