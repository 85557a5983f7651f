"""The pages about runs, and the same as JSON below /api; reports and videos from the volume."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from services.ui.services import control_daemon
from services.ui.site import tables, texts
from services.ui.site.requests import NotFound, PageError
from services.ui.site.site import Site
from services.ui.volume import files
from services.ui.volume.files import OpenFile
from services.ui.volume.runs import Stores
from vla_contract.server.public import page_path
from vla_evaluation.store.records import StoreError

FILTERS = ("policy", "suite", "profile", "assets", "state")
SEARCHED = ("name", "policy", "checkpoint", "suite", "profile")
COLUMNS = {  # of the list, in their order: how to sort by them
    "name": lambda run: run["name"], "rate": lambda run: run.get("rate"), "done": lambda run: run.get("done"),
    "state": lambda run: run["state"], "suite": lambda run: run.get("suite"), "policy": lambda run: run.get("policy"),
    "profile": lambda run: run.get("profile"), "assets": lambda run: run.get("assets"),
    "created": lambda run: run["created"], "seconds": lambda run: run.get("seconds"),
}  # fmt: skip
STATES = ("running", "complete", "stopped", "interrupted", "failed", "not started", "damaged")
NUMBERS = ("done", "seconds")  # columns aligned to the right
OUTCOMES = ("failure", "success")
PAIR_FILTERS = {  # of a comparison's pairs
    "differ": lambda a, b: a != b,
    "failed": lambda a, b: not (a and b),
    "all": lambda a, b: True,
}
MAX_VIDEOS = 60
LAST_EPISODES = 8  # those that ended last, on a run's page
RUN_COLUMNS = (
    "name", "suite", "policy", "checkpoint", "profile", "assets", "state", "planned", "done", "successes", "rate",
    "low", "high", "policy_errors",
)  # fmt: skip
EPISODE_COLUMNS = ("task", "instruction", "episode", "attempt", "success", "steps", "seconds", "policy_error", "film")
REPORT, CURVE, CURVES = "report.html", "curve.png", ("checkpoints", "transformer")
POLL_S = 1.0
MAX_STREAMS = 64  # event streams, each on its own connection
# Reports are untrusted files: they may not act as their reader, nor load from other sites.
REPORT_POLICY = (
    "default-src 'none'; img-src 'self' data:; media-src 'self' data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts"
)


def routes(site: Site, stores: Stores) -> list[BaseRoute]:
    """Return the routes of the pages and of the JSON."""
    root, streams = stores.root, asyncio.Semaphore(MAX_STREAMS)

    def draw_list(request: Request, template: str, **more: Any) -> Response:
        runs = stores.rows()
        query = {name: request.query_params.get(name, "").strip() for name in ("q", *FILTERS, "sort")}
        words = query["q"].lower().split()

        def matches(run: dict[str, Any]) -> bool:
            text = " ".join(str(run.get(name, "")) for name in SEARCHED).lower()
            return all(run.get(name) == query[name] for name in FILTERS if query[name]) and all(
                w in text for w in words
            )

        found = tables.ordered([run for run in runs if matches(run)], query["sort"], COLUMNS)
        displayed, paging = tables.page(request, found, query)
        return site.render(
            request, template, runs=displayed, **paging, count=len(runs), query=query, columns=COLUMNS, numbers=NUMBERS,
            choices={
                **{name: sorted({str(run[name]) for run in runs if name in run}) for name in FILTERS}, "state": STATES,
            },
            with_query=lambda **changes: urlencode({name: v for name, v in {**query, **changes}.items() if v}), **more,
        )  # fmt: skip

    def list_page(request: Request) -> Response:
        curves = [name for name in files.names(root, *CURVES) if files.exists(root, *CURVES, name, CURVE)]
        return draw_list(request, "runs/list.html.j2", curves=curves)

    def list_csv(request: Request) -> Response:
        rows = []
        for run in stores.rows():
            low, high = run.get("interval", (None, None))
            rows.append({**run, "low": low, "high": high})
        return tables.csv_response("runs.csv", RUN_COLUMNS, rows)

    def leaderboard(request: Request) -> Response:
        return site.render(request, "runs/leaderboard.html.j2", board=stores.board())

    def leaderboard_csv(request: Request) -> Response:
        board = stores.board()
        return tables.csv_response("leaderboard.csv", board["columns"], board["rows"])

    def run_page(request: Request) -> Response:
        name = request.path_params["name"]
        if (resolved := files.resolve(root, name)) != name:
            return RedirectResponse(f"{page_path('ui')}/runs/{quote(resolved)}", 307)
        return draw_run(request, "runs/run.html.j2")

    def draw_run(request: Request, template: str = "runs/state.html.j2") -> Response:
        name = request.path_params["name"]
        run = stores.details(name)

        def can_compare(other: dict[str, Any]) -> bool:
            same = all(run[key] == other.get(key) for key in ("suite", "profile", "assets"))
            return same and other["name"] != name and other["state"] == "complete"

        task, outcome = (request.query_params.get(key, "") for key in ("task", "outcome"))
        with_video = sorted((one for one in run["episodes"] if one["film"]), key=lambda one: one["success"])
        videos = [
            one for one in with_video
            if (not task or str(one["task"]) == task)
            and (outcome not in OUTCOMES or one["success"] == (outcome == "success"))
        ]  # fmt: skip
        return site.render(
            request, template, run=run, comparable=[other for other in stores.rows() if can_compare(other)],
            has_report=files.exists(root, "runs", name, REPORT), videos=videos[:MAX_VIDEOS], video_count=len(videos),
            total_videos=len(with_video), task=task, outcome=outcome, outcomes=OUTCOMES, logs=stores.logs(name),
            last=sorted(run["episodes"], key=lambda one: -one["ended_at"])[:LAST_EPISODES],
            acts=control_daemon.may_act(site, request),
        )  # fmt: skip

    async def act(request: Request) -> Response:
        """Resume or delete a run, start the first one, or tell how far that is; by the control daemon, with a login."""
        parts = request.scope["path"].strip("/").split("/")
        return await control_daemon.forward(site, request, "".join(f"/{quote(part, safe='')}" for part in parts))

    def episodes_csv(request: Request) -> Response:
        name = request.path_params["name"]
        run = stores.details(name)
        instructions = {task["task"]: task["instruction"] for task in run["tasks"]}
        rows = [{**episode, "instruction": instructions[episode["task"]]} for episode in run["episodes"]]
        return tables.csv_response(f"{name}.csv", EPISODE_COLUMNS, rows)

    async def events(request: Request) -> Response:
        name = request.path_params["name"]
        if streams.locked():
            detail = f"{MAX_STREAMS} pages are following runs already; try again later"
            return JSONResponse({"detail": detail}, 503, {"Retry-After": "5"})
        await run_in_threadpool(stores.status, name)  # a run that does not exist is reported now

        async def changes() -> AsyncIterator[str]:
            """Yield the run's status whenever it changes, until it has ended; else a keep-alive comment."""
            before = None
            async with streams:
                while True:
                    try:
                        status = await run_in_threadpool(stores.status, name)
                    except (NotFound, StoreError) as error:
                        yield f"event: gone\ndata: {json.dumps({'detail': str(error)})}\n\n"
                        return
                    text = json.dumps(status)
                    yield f"data: {text}\n\n" if text != before else ": still here\n\n"
                    if status["state"] in ("complete", "damaged"):
                        yield "event: end\ndata: {}\n\n"
                        return
                    before = text
                    await asyncio.sleep(POLL_S)

        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(changes(), media_type="text/event-stream", headers=headers)

    def report(request: Request) -> Response:
        name = files.resolve(root, request.path_params["name"])
        try:
            file = files.open_file(root, "runs", name, REPORT)
        except NotFound as error:
            raise NotFound(f"{error}; build the report: ./lab report {name}") from error
        return OpenFile(file, REPORT, {"content-security-policy": REPORT_POLICY})

    def video(request: Request) -> Response:
        run, name = request.path_params["name"], request.path_params["film"]
        if Path(name).suffix not in (".mp4", ".jpg"):
            raise NotFound(f"{name!r} is not a video; expected .mp4 or .jpg")
        return OpenFile(files.open_file(root, "runs", run, "videos", name), name)

    def curve(request: Request) -> Response:
        return OpenFile(files.open_file(root, *CURVES, request.path_params["name"], CURVE), CURVE)

    def sides(request: Request) -> tuple[str, str, bool]:
        query = request.query_params
        return query.get("a", ""), query.get("b", ""), query.get("force") == "1"

    def compare_page(request: Request) -> Response:
        a, b, force = sides(request)
        result, reason, pairs = None, None, []
        show = request.query_params.get("show", "differ")
        if a and b:
            try:
                result = stores.compare(a, b, force)
                matches = PAIR_FILTERS.get(show, PAIR_FILTERS["all"])
                pairs = [pair for pair in result["pairs"] if matches(pair["a"]["success"], pair["b"]["success"])]
            except (PageError, StoreError) as error:
                reason = str(error)
        return site.render(
            request, "runs/compare.html.j2", runs=[run for run in stores.rows() if run.get("done")], a=a, b=b,
            result=result, reason=reason, show=show, force=force, options=list(PAIR_FILTERS),
            pairs=pairs[:MAX_VIDEOS], pair_count=len(pairs),
            verdict=verdict(result, texts.language_of(request)) if result else "",
        )  # fmt: skip

    def json_of(answer) -> Any:
        return lambda request: JSONResponse(answer(request))

    return [
        Route("/runs", list_page),
        Route("/runs.csv", list_csv),
        Route("/runs/leaderboard", leaderboard),
        Route("/runs/leaderboard.csv", leaderboard_csv),
        Route("/runs/compare", compare_page),
        Route("/runs/rows", lambda request: draw_list(request, "runs/rows.html.j2")),
        Route("/runs/first", act, methods=["POST"]),
        Route("/runs/{name}/state", draw_run),
        Route("/runs/{name}/action", act),
        *(Route(f"/runs/{{name}}/{what}", act, methods=["POST"]) for what in ("resume", "delete")),
        Route("/runs/{name}", run_page),
        Route("/runs/{name}/episodes.csv", episodes_csv),
        Route("/runs/{name}/events", events),
        Route("/runs/{name}/report.html", report),
        Route("/runs/{name}/videos/{film}", video),
        Route("/curves/{name}.png", curve),
        Route("/api/runs", json_of(lambda request: {"runs": stores.rows()})),
        Route("/api/runs/{name}", json_of(lambda request: stores.details(request.path_params["name"]))),
        Route("/api/runs/{name}/events", events),
        Route("/api/compare", json_of(lambda request: stores.compare(*sides(request)))),
        Route("/api/leaderboard", json_of(lambda request: stores.board())),
    ]


def verdict(result: Mapping[str, Any], language: str) -> str:
    """Return a comparison as a sentence: direction, points and interval, p-value, pairs, and what forbids its use."""
    low, high = (100 * end for end in result["interval"])
    points, count = 100 * result["difference"], len(result["pairs"])
    say = functools.partial(texts.text, language)
    if count < 2:
        return say("runs.verdict_one")
    name = "worse" if high < 0 else "better" if low > 0 else "same"
    if name == "worse":
        points, low, high = -points, -high, -low
    facts = [
        say("runs.verdict_interval", low=f"{low:.1f}", high=f"{high:.1f}"), f"p = {result['p_value']:.2g}",
        say("runs.verdict_pairs", count=count),
    ]  # fmt: skip
    facts += [say("runs.verdict_kit")] if result["assets"] == "kit" else []
    facts += [say("runs.verdict_unfit")] if result["warnings"] else []
    return say(
        f"runs.verdict_{name}", points=f"{points:+.1f}" if name == "same" else f"{points:.1f}", facts=", ".join(facts)
    )
