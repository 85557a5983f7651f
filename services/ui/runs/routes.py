"""The pages about runs, and the same as JSON below /api; reports and videos from the volume."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from services.ui.services import control_daemon
from services.ui.site import tables, texts
from services.ui.site.requests import NotFound, PageError
from services.ui.site.site import Site, json_routes
from services.ui.volume import files
from services.ui.volume.files import OpenFile
from services.ui.volume.runs import Stores
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
SIGNIFICANT = 0.05  # p-value below which a difference is called one
LAST_EPISODES = 8  # those that ended last, on a run's page
RUN_COLUMNS = (
    "name", "suite", "policy", "checkpoint", "profile", "assets", "state", "planned", "done", "successes", "rate",
    "low", "high", "policy_errors",
)  # fmt: skip
EPISODE_COLUMNS = ("task", "instruction", "episode", "attempt", "success", "steps", "seconds", "policy_error", "film")
REPORT, CURVE, CURVES = "report.html", "curve.png", ("checkpoints", "transformer")
# Reports are untrusted files: they may not act as their reader, nor load from other sites.
REPORT_POLICY = (
    "default-src 'none'; img-src 'self' data:; media-src 'self' data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts"
)


class RunPages:
    """The pages about runs, each method one of them."""

    def __init__(self, site: Site, stores: Stores):
        self.site, self.stores, self.root = site, stores, stores.root

    def draw_list(self, request: Request) -> Response:
        """Return the list of runs, or its rows alone."""
        runs = self.stores.rows()
        query = {name: request.query_params.get(name, "").strip() for name in ("q", *FILTERS, "sort")}

        def matches(run: dict[str, Any]) -> bool:
            fits = all(run.get(name) == query[name] for name in FILTERS if query[name])
            return fits and tables.has_words(query["q"], *(run.get(name, "") for name in SEARCHED))

        found = tables.ordered([run for run in runs if matches(run)], query["sort"], COLUMNS)
        displayed, paging = tables.page(request, found, query)
        curves = [name for name in files.names(self.root, *CURVES) if files.exists(self.root, *CURVES, name, CURVE)]
        choices = {name: sorted({str(run[name]) for run in runs if name in run}) for name in FILTERS}
        return self.site.render(
            request, "runs/rows.html.j2" if request.url.path.endswith("/rows") else "runs/list.html.j2",
            runs=displayed, **paging, count=len(runs), query=query, columns=COLUMNS, numbers=NUMBERS,
            choices={**choices, "state": STATES}, curves=curves,
            with_query=lambda **changes: urlencode({name: v for name, v in {**query, **changes}.items() if v}),
        )  # fmt: skip

    def list_csv(self, request: Request) -> Response:
        """Return all runs as CSV."""
        rows = (
            {**run, **dict(zip(("low", "high"), run.get("interval", ()), strict=False))} for run in self.stores.rows()
        )
        return tables.csv_response("runs.csv", RUN_COLUMNS, rows)

    def leaderboard(self, request: Request) -> Response:
        """Return the leaderboard."""
        return self.site.render(request, "runs/leaderboard.html.j2", board=self.stores.board())

    def leaderboard_csv(self, request: Request) -> Response:
        """Return the leaderboard as CSV."""
        board = self.stores.board()
        return tables.csv_response("leaderboard.csv", board["columns"], board["rows"])

    def run_page(self, request: Request) -> Response:
        """Return a run's page; a prefix of its name leads there."""
        name = request.path_params["name"]
        if (resolved := files.resolve(self.root, name)) != name:
            return RedirectResponse(f"/runs/{quote(resolved)}", 307)
        return self.draw_run(request, "runs/run.html.j2")

    def draw_run(self, request: Request, template: str = "runs/state.html.j2") -> Response:
        """Return a run's page, or the part of it that follows the run."""
        name = request.path_params["name"]
        run = self.stores.details(name)

        def can_compare(other: dict[str, Any]) -> bool:
            same = all(run[key] == other.get(key) for key in ("suite", "profile", "assets"))
            return same and other["name"] != name and other["state"] == "complete"

        task, outcome = (request.query_params.get(key, "") for key in ("task", "outcome"))
        with_video = sorted((one for one in run["episodes"] if one["film"]), key=lambda one: one["success"])
        videos = [
            one for one in with_video
            if task in ("", str(one["task"])) and outcome in ("", OUTCOMES[one["success"]])
        ]  # fmt: skip
        return self.site.render(
            request, template, run=run, comparable=[other for other in self.stores.rows() if can_compare(other)],
            has_report=files.exists(self.root, "runs", name, REPORT), videos=videos[:MAX_VIDEOS],
            video_count=len(videos), total_videos=len(with_video), task=task, outcome=outcome, outcomes=OUTCOMES,
            logs=self.stores.logs(name), last=sorted(run["episodes"], key=lambda one: -one["ended_at"])[:LAST_EPISODES],
            acts=control_daemon.may_act(self.site, request),
        )  # fmt: skip

    def episodes_csv(self, request: Request) -> Response:
        """Return a run's episodes as CSV."""
        name = request.path_params["name"]
        run = self.stores.details(name)
        instructions = {task["task"]: task["instruction"] for task in run["tasks"]}
        rows = ({**episode, "instruction": instructions[episode["task"]]} for episode in run["episodes"])
        return tables.csv_response(f"{name}.csv", EPISODE_COLUMNS, rows)

    def report(self, request: Request) -> Response:
        """Return a run's report, which may do nothing as its reader."""
        name = files.resolve(self.root, request.path_params["name"])
        try:
            file = files.open_file(self.root, "runs", name, REPORT)
        except NotFound as error:
            raise NotFound(f"{error}; build the report: ./lab report {name}") from error
        return OpenFile(file, REPORT, {"content-security-policy": REPORT_POLICY})

    def video(self, request: Request) -> Response:
        """Return a video of a run, or its still."""
        run, name = request.path_params["name"], request.path_params["film"]
        if Path(name).suffix not in (".mp4", ".jpg"):
            raise NotFound(f"{name!r} is not a video; expected .mp4 or .jpg")
        return OpenFile(files.open_file(self.root, "runs", run, "videos", name), name)

    def curve(self, request: Request) -> Response:
        """Return a training curve of the course."""
        return OpenFile(files.open_file(self.root, *CURVES, request.path_params["name"], CURVE), CURVE)

    def compare_page(self, request: Request) -> Response:
        """Return the comparison of two runs."""
        a, b, force = sides = _sides(request)
        result, reason, pairs = None, None, []
        show = request.query_params.get("show", "differ")
        if a and b:
            try:
                result = self.stores.compare(*sides)
                matches = PAIR_FILTERS.get(show, PAIR_FILTERS["all"])
                pairs = [pair for pair in result["pairs"] if matches(pair["a"]["success"], pair["b"]["success"])]
            except (PageError, StoreError) as error:
                reason = str(error)
        return self.site.render(
            request, "runs/compare.html.j2", runs=[run for run in self.stores.rows() if run.get("done")], a=a, b=b,
            result=result, reason=reason, show=show, force=force, options=list(PAIR_FILTERS),
            pairs=pairs[:MAX_VIDEOS], pair_count=len(pairs),
            verdict=verdict(result, texts.language_of(request)) if result else "",
        )  # fmt: skip


def routes(site: Site, stores: Stores) -> list[BaseRoute]:
    """Return the routes of the pages and of the JSON."""
    act = functools.partial(control_daemon.forward, site)
    pages = RunPages(site, stores)
    answers: dict[str, Callable[[Request], Any]] = {
        "/api/runs": lambda request: {"runs": stores.rows()},
        "/api/runs/{name}": lambda request: stores.details(request.path_params["name"]),
        "/api/compare": lambda request: stores.compare(*_sides(request)),
        "/api/leaderboard": lambda request: stores.board(),
    }
    return [
        Route("/runs", pages.draw_list),
        Route("/runs.csv", pages.list_csv),
        Route("/runs/leaderboard", pages.leaderboard),
        Route("/runs/leaderboard.csv", pages.leaderboard_csv),
        Route("/runs/compare", pages.compare_page),
        Route("/runs/rows", pages.draw_list),
        Route("/runs/first", act, methods=["POST"]),
        Route("/runs/{name}/state", pages.draw_run),
        Route("/runs/{name}/action", act),
        *(Route(f"/runs/{{name}}/{what}", act, methods=["POST"]) for what in ("resume", "delete")),
        Route("/runs/{name}", pages.run_page),
        Route("/runs/{name}/episodes.csv", pages.episodes_csv),
        Route("/runs/{name}/report.html", pages.report),
        Route("/runs/{name}/videos/{film}", pages.video),
        Route("/curves/{name}.png", pages.curve),
        *json_routes(answers),
    ]


def _sides(request: Request) -> tuple[str, str, bool]:
    query = request.query_params
    return query.get("a", ""), query.get("b", ""), query.get("force") == "1"


def verdict(result: Mapping[str, Any], language: str) -> str:
    """Return a comparison as a sentence: direction, points and interval, p-value, pairs, and what forbids its use."""
    low, high = (100 * end for end in result["interval"])
    points, count = 100 * result["difference"], len(result["pairs"])
    say = functools.partial(texts.text, language)
    if count < 2:
        return say("runs.verdict_one")
    is_shown = result["p_value"] < SIGNIFICANT
    name = "worse" if is_shown and high < 0 else "better" if is_shown and low > 0 else "same"
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
