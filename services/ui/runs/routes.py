"""The pages about runs. What they show they ask the service `reports`; films and events pass through."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from services.ui.site import paging
from services.ui.site.site import Site
from services.ui.site.tables import as_csv
from services.ui.site.upstream import Away

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
FILTERS = ("policy", "suite", "state")
OUTCOMES = ("failure", "success")
SHOWN = ("differ", "failed", "all")  # of a comparison's pairs
MOST_FILMS = 60
RUN_COLUMNS = (
    "name", "suite", "policy", "checkpoint", "profile", "assets", "state", "planned", "done", "successes", "rate",
    "low", "high", "policy_errors",
)  # fmt: skip
EPISODE_COLUMNS = ("task", "instruction", "episode", "attempt", "success", "steps", "seconds", "policy_error", "film")


def routes(site: Site) -> list[BaseRoute]:
    """Returns the pages' routes."""
    reports = site.services["reports"]

    async def listed(request: Request) -> Response:
        runs = (await reports.json("/api/runs"))["runs"]
        chosen = {name: request.query_params.get(name, "") for name in FILTERS}
        known = {name: sorted({str(run[name]) for run in runs if name in run}) for name in FILTERS}
        shown = [run for run in runs if all(run.get(name) == value for name, value in chosen.items() if value)]
        start = paging.start(request.query_params.get("from", ""), len(shown))
        turns = {word: urlencode({**chosen, "from": at}) for word, at in paging.turns(start, len(shown)).items()}
        return site.render(
            request, "runs/list.html.j2", runs=shown[start : start + paging.ROWS], start=start, left=len(shown),
            count=len(runs), chosen=chosen, known=known, turns=turns,
        )  # fmt: skip

    async def listed_csv(request: Request) -> Response:
        runs = (await reports.json("/api/runs"))["runs"]
        return as_csv("runs.csv", RUN_COLUMNS, map(_with_ends, runs))

    async def league(request: Request) -> Response:
        return site.render(request, "runs/leaderboard.html.j2", board=await reports.json("/api/leaderboard"))

    async def league_csv(request: Request) -> Response:
        board = await reports.json("/api/leaderboard")
        return as_csv("leaderboard.csv", board["columns"], board["rows"])

    async def run(request: Request) -> Response:
        found = await reports.json(f"/api/runs/{_name(request)}")
        others = [other for other in (await reports.json("/api/runs"))["runs"] if _pairs_with(found, other)]
        return site.render(request, "runs/run.html.j2", run=found, others=others, **_films(request, found))

    async def episodes_csv(request: Request) -> Response:
        name = _name(request)
        found = await reports.json(f"/api/runs/{name}")
        words = {task["task"]: task["instruction"] for task in found["tasks"]}
        rows = ({**one, "instruction": words[one["task"]]} for one in found["episodes"])
        return as_csv(f"{name}.csv", EPISODE_COLUMNS, rows)

    async def events(request: Request) -> Response:
        return await reports.passed(request, f"/api/runs/{_name(request)}/events")

    async def film(request: Request) -> Response:
        return await reports.passed(request, f"/{_name(request)}/videos/{_name(request, 'film')}")

    async def report(request: Request) -> Response:
        answer = await reports.passed(request, f"/{_name(request)}/report.html")
        # a file that others may have written, with scripts: it must not act in the name of who looks at it
        policy = answer.headers.get("content-security-policy", "default-src 'none'; frame-ancestors 'none'")
        answer.headers["content-security-policy"] = f"{policy}; sandbox allow-scripts"
        return answer

    async def compared(request: Request) -> Response:
        a, b = (request.query_params.get(side, "") for side in ("a", "b"))
        runs = [run for run in (await reports.json("/api/runs"))["runs"] if run.get("done")]
        result, why = None, None
        force = request.query_params.get("force") == "1"
        if a and b:
            try:
                result = await reports.json("/api/compare", params={"a": a, "b": b, "force": str(int(force))})
            except Away as error:
                if error.status is None:
                    raise
                why = error.why
        shown = request.query_params.get("show", SHOWN[0])
        pairs = _chosen_pairs(result["pairs"], shown) if result else []
        return site.render(
            request, "runs/compare.html.j2", runs=runs, a=a, b=b, result=result, why=why, show=shown, ways=SHOWN,
            force=force, pairs=pairs[:MOST_FILMS], pair_count=len(pairs),
        )  # fmt: skip

    return [
        Route("/runs", listed),
        Route("/runs.csv", listed_csv),
        Route("/runs/leaderboard", league),
        Route("/runs/leaderboard.csv", league_csv),
        Route("/runs/compare", compared),
        Route("/runs/{name}", run),
        Route("/runs/{name}/episodes.csv", episodes_csv),
        Route("/runs/{name}/events", events),
        Route("/runs/{name}/report.html", report),
        Route("/runs/{name}/videos/{film}", film),
    ]


def _name(request: Request, part: str = "name") -> str:
    name = request.path_params[part]
    if not re.fullmatch(NAME, name):
        raise Away("reports", f"{name[:80]!r} is no name that the lab gives", 404)
    return name


def _pairs_with(run: dict[str, Any], other: dict[str, Any]) -> bool:
    """Returns whether the other run is complete, and can have been made under the same protocol."""
    same = all(run[name] == other.get(name) for name in ("suite", "profile", "assets"))
    return same and other["name"] != run["name"] and other["state"] == "complete"


def _films(request: Request, run: dict[str, Any]) -> dict[str, Any]:
    """Returns the episodes with a film that the request's filters leave, failures first, and the filters."""
    task, outcome = request.query_params.get("task", ""), request.query_params.get("outcome", "")
    films = sorted((one for one in run["episodes"] if one["film"]), key=lambda one: one["success"])
    left = [
        one
        for one in films
        if (not task or str(one["task"]) == task)
        and (outcome not in OUTCOMES or one["success"] == (outcome == "success"))
    ]
    return {
        "films": left[:MOST_FILMS], "film_count": len(left), "all_films": len(films), "task": task, "outcome": outcome,
        "outcomes": OUTCOMES,
    }  # fmt: skip


def _chosen_pairs(pairs: list[dict[str, Any]], show: str) -> list[dict[str, Any]]:
    wanted = {
        "differ": lambda a, b: a != b,
        "failed": lambda a, b: not (a and b),
        "all": lambda a, b: True,
    }.get(show, lambda a, b: True)
    return [pair for pair in pairs if wanted(pair["a"]["success"], pair["b"]["success"])]


def _with_ends(run: dict[str, Any]) -> dict[str, Any]:
    low, high = run.get("interval", (None, None))
    return {**run, "low": low, "high": high}
