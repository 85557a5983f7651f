"""The pages about runs, and the same as JSON below /api; reports and videos from the volume."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from services.ui.site import tables
from services.ui.site.problem import NotFound, PageError
from services.ui.site.site import Site
from services.ui.volume import files
from services.ui.volume.files import OpenFile
from services.ui.volume.stores import Stores
from vla_contract.server.public import page_path
from vla_evaluation.store.records import StoreError

FILTERS = ("policy", "suite", "state")
OUTCOMES = ("failure", "success")
PAIR_FILTERS = {  # of a comparison's pairs
    "differ": lambda a, b: a != b,
    "failed": lambda a, b: not (a and b),
    "all": lambda a, b: True,
}
MAX_VIDEOS = 60
RUN_COLUMNS = (
    "name", "suite", "policy", "checkpoint", "profile", "assets", "state", "planned", "done", "successes", "rate",
    "low", "high", "policy_errors",
)  # fmt: skip
EPISODE_COLUMNS = ("task", "instruction", "episode", "attempt", "success", "steps", "seconds", "policy_error", "film")
POLL_S = 1.0
MAX_STREAMS = 64  # event streams, each on its own connection
ENDED = ("complete", "damaged")
# Reports are untrusted files: they may not act as their reader, nor load from other sites.
REPORT_POLICY = (
    "default-src 'none'; img-src 'self' data:; media-src 'self' data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts"
)


def routes(site: Site, stores: Stores) -> list[BaseRoute]:
    """Return the routes of the pages and of the JSON."""
    streams = asyncio.Semaphore(MAX_STREAMS)

    def listed(request: Request) -> Response:
        runs = stores.rows()
        filters = {name: request.query_params.get(name, "") for name in FILTERS}
        choices = {name: sorted({str(run[name]) for run in runs if name in run}) for name in FILTERS}
        matching = [run for run in runs if all(run.get(name) == value for name, value in filters.items() if value)]
        start = tables.start(request.query_params.get("from", ""), len(matching))
        turns = {word: urlencode({**filters, "from": at}) for word, at in tables.turns(start, len(matching)).items()}
        return site.render(
            request, "runs/list.html.j2", runs=matching[start : start + tables.ROWS], start=start, left=len(matching),
            count=len(runs), filters=filters, choices=choices, turns=turns, curves=files.curves(stores.root),
        )  # fmt: skip

    def listed_csv(request: Request) -> Response:
        ends = {"low": 0, "high": 1}
        rows = ({**run, **{end: run["interval"][n] for end, n in ends.items() if "interval" in run}}
                for run in stores.rows())  # fmt: skip
        return tables.as_csv("runs.csv", RUN_COLUMNS, rows)

    def league(request: Request) -> Response:
        return site.render(request, "runs/leaderboard.html.j2", board=stores.board().to_json())

    def league_csv(request: Request) -> Response:
        board = stores.board().to_json()
        return tables.as_csv("leaderboard.csv", board["columns"], board["rows"])

    def run(request: Request) -> Response:
        name = request.path_params["name"]
        if (resolved := files.resolve(stores.root, name)) != name:
            return RedirectResponse(f"{page_path('ui')}/runs/{quote(resolved)}", 307)
        run_data = stores.details(name)
        comparable = [other for other in stores.rows() if _can_compare(run_data, other)]
        has_report = files.exists(stores.root, "runs", name, files.REPORT)
        return site.render(
            request,
            "runs/run.html.j2",
            run=run_data,
            comparable=comparable,
            has_report=has_report,
            **_videos(request, run_data),
        )

    def episodes_csv(request: Request) -> Response:
        name = request.path_params["name"]
        run_data = stores.details(name)
        instructions = {task["task"]: task["instruction"] for task in run_data["tasks"]}
        rows = ({**episode, "instruction": instructions[episode["task"]]} for episode in run_data["episodes"])
        return tables.as_csv(f"{name}.csv", EPISODE_COLUMNS, rows)

    async def events(request: Request) -> Response:
        name = request.path_params["name"]
        if streams.locked():
            return JSONResponse(
                {"detail": f"{MAX_STREAMS} pages are following runs already; try again later"},
                503,
                {"Retry-After": "5"},
            )
        await run_in_threadpool(stores.status, name)  # a run that does not exist is reported now
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(_events(stores, name, streams), media_type="text/event-stream", headers=headers)

    def report(request: Request) -> Response:
        name = files.resolve(stores.root, request.path_params["name"])
        return OpenFile(files.open_report(stores.root, name), files.REPORT, {"content-security-policy": REPORT_POLICY})

    def video(request: Request) -> Response:
        name = request.path_params["film"]
        return OpenFile(files.open_video(stores.root, request.path_params["name"], name), name)

    def curve(request: Request) -> Response:
        return OpenFile(files.open_file(stores.root, *files.curve(request.path_params["name"])), files.CURVE)

    def compare_page(request: Request) -> Response:
        a, b, force = _sides(request)
        runs = [run for run in stores.rows() if run.get("done")]
        result, reason = None, None
        if a and b:
            try:
                result = stores.compare(a, b, force)
            except PageError as error:
                reason = error.reason
            except StoreError as error:
                reason = str(error)
        show = request.query_params.get("show", "differ")
        matches = PAIR_FILTERS.get(show, PAIR_FILTERS["all"])
        pairs = (
            [pair for pair in result["pairs"] if matches(pair["a"]["success"], pair["b"]["success"])] if result else []
        )
        return site.render(
            request, "runs/compare.html.j2", runs=runs, a=a, b=b, result=result, reason=reason, show=show, force=force,
            options=list(PAIR_FILTERS), pairs=pairs[:MAX_VIDEOS], pair_count=len(pairs),
        )  # fmt: skip

    def json_of(answer) -> Any:
        return lambda request: JSONResponse(answer(request))

    return [
        Route("/runs", listed),
        Route("/runs.csv", listed_csv),
        Route("/runs/leaderboard", league),
        Route("/runs/leaderboard.csv", league_csv),
        Route("/runs/compare", compare_page),
        Route("/runs/{name}", run),
        Route("/runs/{name}/episodes.csv", episodes_csv),
        Route("/runs/{name}/events", events),
        Route("/runs/{name}/report.html", report),
        Route("/runs/{name}/videos/{film}", video),
        Route("/curves/{name}.png", curve),
        Route("/api/runs", json_of(lambda request: {"runs": stores.rows()})),
        Route("/api/runs/{name}", json_of(lambda request: stores.details(request.path_params["name"]))),
        Route("/api/runs/{name}/events", events),
        Route("/api/compare", json_of(lambda request: stores.compare(*_sides(request)))),
        Route("/api/leaderboard", json_of(lambda request: stores.board().to_json())),
    ]


def _sides(request: Request) -> tuple[str, str, bool]:
    query = request.query_params
    return query.get("a", ""), query.get("b", ""), query.get("force") == "1"


async def _events(stores: Stores, name: str, streams: asyncio.Semaphore) -> AsyncIterator[str]:
    """Yield a run's status whenever it changes, until it has ended; else a keep-alive comment."""
    before = None
    async with streams:
        while True:
            try:
                now = await run_in_threadpool(stores.status, name)
            except (NotFound, StoreError) as error:
                yield f"event: gone\ndata: {json.dumps({'detail': str(error)})}\n\n"
                return
            text = json.dumps(now)
            yield f"data: {text}\n\n" if text != before else ": still here\n\n"
            if now["state"] in ENDED:
                yield "event: end\ndata: {}\n\n"
                return
            before = text
            await asyncio.sleep(POLL_S)


def _can_compare(run: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether the other run is complete and has the same suite, profile and assets."""
    same = all(run[name] == other.get(name) for name in ("suite", "profile", "assets"))
    return same and other["name"] != run["name"] and other["state"] == "complete"


def _videos(request: Request, run: dict[str, Any]) -> dict[str, Any]:
    """Return the episodes with a video that match the request's filters, failures first, and the filters."""
    task, outcome = request.query_params.get("task", ""), request.query_params.get("outcome", "")
    videos = sorted(
        (episode for episode in run["episodes"] if episode["film"]),
        key=lambda episode: episode["success"],
    )

    def is_left(episode: dict[str, Any]) -> bool:
        fits = outcome not in OUTCOMES or episode["success"] == (outcome == "success")
        return fits and (not task or str(episode["task"]) == task)

    left: Sequence = [film for film in videos if is_left(film)]
    return {
        "videos": left[:MAX_VIDEOS], "video_count": len(left), "total_videos": len(videos), "task": task,
        "outcome": outcome, "outcomes": OUTCOMES,
    }  # fmt: skip
