"""The pages about data sets, and the same as JSON below /api. One thing is written: which episodes are bad."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from services.ui.site import tables
from services.ui.site.bodies import read
from services.ui.site.problem import Missing, Problem
from services.ui.site.site import Site
from services.ui.volume.files import OpenFile
from services.ui.volume.sets import Sets
from vla_common import endings
from vla_contract.protocol.json_body import load_json

SHOWN = ("all", "good", "bad")
MARKS = ("bad", "good")
API = "/api/data/{name}"


def routes(site: Site, sets: Sets) -> list[BaseRoute]:
    """Return the routes of the pages and of the JSON."""

    def listed(request: Request) -> Response:
        return site.render(request, "data/list.html.j2", sets=sets.rows())

    def one(request: Request) -> Response:
        found = sets.one(request.path_params["name"])
        asked = {name: request.query_params.get(name, "") for name in ("task", "show")}
        left = _chosen(found["episodes_told"], **asked)
        start = tables.start(request.query_params.get("from", ""), len(left))
        turns = {word: urlencode({**asked, "from": at}) for word, at in tables.turns(start, len(left)).items()}
        return site.render(
            request, "data/set.html.j2", found=found, episodes=left[start : start + tables.ROWS], start=start,
            left=len(left), turns=turns, ways=SHOWN, asked=asked, here=f"{request.url.path}?{request.url.query}",
        )  # fmt: skip

    def episode(request: Request) -> Response:
        name, index = request.path_params["name"], _index(request)
        found, shown = sets.one(name), sets.episode(name, index)
        order = [each["episode"] for each in found["episodes_told"]]
        place = order.index(index)
        around = {"before": order[place - 1 : place] if place else [], "after": order[place + 1 : place + 2]}
        return site.render(request, "data/episode.html.j2", found=found, shown=shown, **around)

    def film(request: Request) -> Response:
        name, camera = request.path_params["name"], request.path_params["camera"]
        return OpenFile(sets.open_video(name, _index(request), camera), "film.mp4")

    async def mark_form(request: Request) -> Response:
        form = parse_qs((await read(request.receive)).decode("utf-8", "replace"))
        what, episodes = form.get("what", [""])[0], form.get("episode", [])
        if what not in MARKS or not all(re.fullmatch(r"\d{1,9}", each) for each in episodes):
            raise Problem(400, "expected what=bad or what=good, and episode=NUMBER")
        name = request.path_params["name"]
        await mark(name, {what: [int(each) for each in episodes]})
        (single,) = episodes if len(episodes) == 1 and "one" in form else ("",)
        return RedirectResponse(f"/data/{name}/{single}" if single else f"/data/{name}?show={what}", 303)

    async def mark_json(request: Request) -> Response:
        if request.headers.get("content-type", "").split(";")[0] != "application/json":
            # another site's page cannot send this type without asking first, and nobody answers that question
            raise Problem(415, "expected application/json")
        try:
            asked: Any = load_json(await read(request.receive))
        except ValueError as error:
            raise Problem(400, str(error)) from error
        marks = [asked.get(what, []) for what in MARKS] if isinstance(asked, dict) else [None]
        if not all(isinstance(each, list) and all(type(index) is int for index in each) for each in marks):
            raise Problem(400, 'expected {"bad": [episodes], "good": [episodes]}')
        return JSONResponse(await mark(request.path_params["name"], asked))

    async def mark(name: str, asked: dict[str, list[int]]) -> dict[str, Any]:
        try:
            return await run_in_threadpool(sets.mark, name, asked.get("bad", []), asked.get("good", []))
        except OSError as error:
            full = endings.is_full_disk(error)
            why = "no space left; free some, and mark it again" if full else error.strerror or error
            raise Problem(507 if full else 503, f"the volume takes no marks: {why}") from error

    def as_json(request: Request) -> Response:
        if "name" not in request.path_params:
            return JSONResponse({"sets": sets.rows()})
        name = request.path_params["name"]
        return JSONResponse(sets.episode(name, _index(request)) if "index" in request.path_params else sets.one(name))

    return [
        Route("/data", listed),
        Route("/data/{name}", one),
        Route("/data/{name}/marks", mark_form, methods=["POST"]),
        Route("/data/{name}/{index}", episode),
        Route("/data/{name}/films/{index}/{camera}.mp4", film),
        Route("/api/data", as_json),
        Route(API, as_json),
        Route(f"{API}/episodes/{{index}}", as_json),
        Route(f"{API}/films/{{index}}/{{camera}}.mp4", film),
        Route(f"{API}/marks", mark_json, methods=["POST"]),
    ]


def _index(request: Request) -> int:
    index = request.path_params["index"]
    if not re.fullmatch("[0-9]{1,9}", index):
        raise Missing(f"{index[:80]!r} is not an episode")
    return int(index)


def _chosen(episodes: list[dict[str, Any]], task: str, show: str) -> list[dict[str, Any]]:
    """Return the episodes that the filters leave."""
    wanted = {"good": (False,), "bad": (True,)}.get(show, (False, True))
    return [episode for episode in episodes if episode["bad"] in wanted and (not task or episode["task"] == task)]
