"""The pages about data sets, and the same as JSON below /api. They write only the marks of bad episodes."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from services.ui.services import control_daemon
from services.ui.site import tables
from services.ui.site.requests import NotFound, PageError, read
from services.ui.site.site import Site, json_routes
from services.ui.volume.datasets import Datasets
from services.ui.volume.files import OpenFile
from vla_common import entrypoint
from vla_contract.protocol.json_body import load_json

FILTERS = ("q", "task", "show")
SHOW = {"all": (False, True), "good": (False,), "bad": (True,)}  # by mark
MARKS = ("bad", "good")
ROWS = 25  # episodes per page, each with a thumbnail
API = "/api/data/{name}"


class DataPages:
    """The pages about data sets, each method one of them."""

    def __init__(self, site: Site, sets: Datasets):
        self.site, self.sets = site, sets

    def draw_list(self, request: Request) -> Response:
        """Return the list of data sets, or its rows alone."""
        query = request.query_params.get("q", "").strip()
        rows = self.sets.rows()
        found = [row for row in rows if tables.has_words(query, row["name"], row.get("robot", ""))]
        template = "data/rows.html.j2" if request.url.path.endswith("/rows") else "data/list.html.j2"
        return self.site.render(request, template, sets=found, count=len(rows), query=query)

    def draw_set(self, request: Request) -> Response:
        """Return a data set's page, or its episodes alone."""
        dataset = self.sets.describe(request.path_params["name"])
        filters = {name: request.query_params.get(name, "").strip() for name in FILTERS}
        shown = SHOW.get(filters["show"], SHOW["all"])
        matching = [
            episode for episode in dataset["episodes_told"]
            if episode["bad"] in shown and filters["task"] in ("", episode["task"])
            and tables.has_words(filters["q"], episode["episode"], episode["task"])
        ]  # fmt: skip
        episodes, paging = tables.page(request, matching, filters, ROWS)
        template = "data/episodes.html.j2" if request.url.path.endswith("/rows") else "data/set.html.j2"
        return self.site.render(
            request, template, dataset=dataset, episodes=episodes, **paging, options=SHOW, filters=filters,
            acts=control_daemon.may_act(self.site, request),
        )  # fmt: skip

    def episode(self, request: Request) -> Response:
        """Return an episode's page."""
        name, index = request.path_params["name"], _index(request)
        dataset, details = self.sets.describe(name), self.sets.episode(name, index)
        order = [each["episode"] for each in dataset["episodes_told"]]
        position = order.index(index)
        return self.site.render(
            request, "data/episode.html.j2", dataset=dataset, episode=details, after=order[position + 1 : position + 2],
            before=order[max(position - 1, 0) : position],
        )  # fmt: skip

    def video(self, request: Request) -> Response:
        """Return the video of an episode's camera."""
        name, camera = request.path_params["name"], request.path_params["camera"]
        return OpenFile(self.sets.open_video(name, _index(request), camera), "film.mp4")

    def download(self, request: Request) -> Response:
        """Return a data set as a tar file."""
        name = request.path_params["name"]
        headers = {"content-disposition": f'attachment; filename="{name}.tar"', "cache-control": "no-store"}
        return StreamingResponse(self.sets.archive(name), headers=headers, media_type="application/x-tar")

    async def mark_form(self, request: Request) -> Response:
        """Mark episodes by a form of the pages, which are shown again."""
        form = parse_qs((await read(request)).decode("utf-8", "replace"))
        label, episodes = form.get("what", [""])[0], form.get("episode", [])
        if label not in MARKS or not all(re.fullmatch(r"\d{1,9}", each) for each in episodes):
            raise PageError(400, "expected what=bad or what=good, and episode=NUMBER")
        name = request.path_params["name"]
        await self._mark(name, {label: [int(each) for each in episodes]})
        if "one" in form and episodes:
            return RedirectResponse(f"/data/{name}/{episodes[0]}", 303)
        return RedirectResponse(f"/data/{name}?{urlencode({'show': label})}", 303)

    async def mark_json(self, request: Request) -> Response:
        """Mark episodes by JSON, as programs do."""
        if request.headers.get("content-type", "").split(";")[0] != "application/json":
            # another site's page needs a CORS preflight for this type, which is never answered
            raise PageError(415, "expected application/json")
        try:
            request_marks: Any = load_json(await read(request))
        except ValueError as error:
            raise PageError(400, str(error)) from error
        marks = [request_marks.get(label, []) for label in MARKS] if isinstance(request_marks, dict) else [None]
        if not all(isinstance(each, list) and all(type(index) is int for index in each) for each in marks):
            raise PageError(400, 'expected {"bad": [episodes], "good": [episodes]}')
        return JSONResponse(await self._mark(request.path_params["name"], request_marks))

    async def _mark(self, name: str, marks: dict[str, list[int]]) -> dict[str, Any]:
        try:
            return await run_in_threadpool(self.sets.mark, name, marks.get("bad", []), marks.get("good", []))
        except OSError as error:
            full = entrypoint.is_full_disk(error)
            reason = "no space left; free some space and try again" if full else error.strerror or error
            raise PageError(507 if full else 503, f"the marks cannot be saved: {reason}") from error


def routes(site: Site, sets: Datasets) -> list[BaseRoute]:
    """Return the routes of the pages and of the JSON."""
    act = functools.partial(control_daemon.forward, site)
    pages = DataPages(site, sets)
    answers: dict[str, Callable[[Request], Any]] = {
        "/api/data": lambda request: {"sets": sets.rows()},
        API: lambda request: sets.describe(request.path_params["name"]),
        f"{API}/episodes/{{index}}": lambda request: sets.episode(request.path_params["name"], _index(request)),
    }
    return [
        Route("/data", pages.draw_list),
        Route("/data/rows", pages.draw_list),
        Route("/data/{name}", pages.draw_set),
        Route("/data/{name}/rows", pages.draw_set),
        Route("/data/{name}/check", act, methods=["POST"]),
        Route("/data/{name}/action", act),
        Route("/data/{name}/download", pages.download),
        Route("/data/{name}/marks", pages.mark_form, methods=["POST"]),
        Route("/data/{name}/{index}", pages.episode),
        Route("/data/{name}/films/{index}/{camera}.mp4", pages.video),
        Route(f"{API}/films/{{index}}/{{camera}}.mp4", pages.video),
        Route(f"{API}/marks", pages.mark_json, methods=["POST"]),
        *json_routes(answers),
    ]


def _index(request: Request) -> int:
    index = request.path_params["index"]
    if not re.fullmatch("[0-9]{1,9}", index):
        raise NotFound(f"{index[:80]!r} is not an episode")
    return int(index)
