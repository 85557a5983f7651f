"""What programs and the lab's pages ask: runs as JSON, one that is under way as events, two compared."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from services.reports import standing
from services.reports.files import NAME, Missing
from services.reports.stores import Stores
from vla_common import endings
from vla_datasets.errors import DatasetError
from vla_evaluation.report.compare import Comparison, Unpaired, compare
from vla_evaluation.store.records import StoreError
from vla_evaluation.store.runstore import RunStore

EVERY_S = 1.0
AT_ONCE = 64  # streams of events: each holds a connection
ENDED = ("complete", "damaged")


def routes(stores: Stores) -> list[Route]:
    """Returns the routes below /api. What is wrong is told as {"detail": …}."""
    streams = asyncio.Semaphore(AT_ONCE)

    def runs(request: Request) -> Response:
        return JSONResponse({"runs": stores.rows()})

    def run(request: Request) -> Response:
        name = _name(request)
        more = stores.read(name, lambda store: {**standing.report(store), "episodes": standing.finished(store)})
        return JSONResponse({**stores.standing(name), **more})

    async def events(request: Request) -> Response:
        name = _name(request)
        if streams.locked():
            return JSONResponse({"detail": f"{AT_ONCE} are watching; try again"}, 503, {"Retry-After": "5"})
        await run_in_threadpool(stores.standing, name)  # a run that is not there is told now
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(_events(stores, name, streams), media_type="text/event-stream", headers=headers)

    def league(request: Request) -> Response:
        return JSONResponse(stores.board().to_json())

    def compared(request: Request) -> Response:
        a, b = (_plain(request.query_params.get(side, "")) for side in ("a", "b"))
        force = request.query_params.get("force") == "1"
        return stores.read(a, lambda left: stores.read(b, lambda right: _compared(left, right, force)))

    return [
        Route("/api/runs", told(runs)),
        Route("/api/runs/{name}", told(run)),
        Route("/api/runs/{name}/events", told(events)),
        Route("/api/compare", told(compared)),
        Route("/api/leaderboard", told(league)),
    ]


def told(endpoint):
    """Returns an endpoint whose errors are JSON: 404 for what is not there, 409: it cannot be read, 507: no space."""

    async def answer(request: Request) -> Response:
        try:
            if asyncio.iscoroutinefunction(endpoint):
                return await endpoint(request)
            return await run_in_threadpool(endpoint, request)
        except Missing as error:
            return JSONResponse({"detail": str(error)}, 404)
        except (StoreError, DatasetError) as error:
            return JSONResponse({"detail": str(error)}, 409)
        except OSError as error:  # of writing marks
            full = endings.is_full_disk(error)
            why = "no space left; free some, and mark it again" if full else error.strerror or error
            return JSONResponse({"detail": f"the volume takes no marks: {why}"}, 507 if full else 503)

    return answer


async def _events(stores: Stores, name: str, streams: asyncio.Semaphore) -> AsyncIterator[str]:
    """Yields a run's standing as often as it changes, until it is complete; a comment where nothing does."""
    before = None
    async with streams:
        while True:
            try:
                now = await run_in_threadpool(stores.standing, name)
            except (Missing, StoreError) as error:
                yield f"event: gone\ndata: {json.dumps({'detail': str(error)})}\n\n"
                return
            said = json.dumps(now)
            yield f"data: {said}\n\n" if said != before else ": still here\n\n"
            if now["state"] in ENDED:
                yield "event: end\ndata: {}\n\n"
                return
            before = said
            await asyncio.sleep(EVERY_S)


def _compared(left: RunStore, right: RunStore, force: bool) -> Response:
    """Answer with the comparison of two runs and every pair; 409 where they cannot be compared.

    Unpaired is caught here: outside, a ValueError from reading a store means that the store is damaged.
    """
    try:
        result = compare(left, right, force)
    except Unpaired as error:
        return JSONResponse({"detail": str(error)}, 409)
    tasks = left.described()["tasks"]
    a, b = ({(e.task, e.episode): e for e in store.finished()} for store in (left, right))
    pairs = [
        {"task": key[0], "episode": key[1], "a": standing.episode(a[key]), "b": standing.episode(b[key])}
        for key in sorted(a.keys() & b.keys())
    ]
    return JSONResponse({**_summed(result, tasks), "pairs": pairs})


def _summed(result: Comparison, tasks: list[dict]) -> dict[str, Any]:
    return {
        "a": standing.figures(result.a, result.pairs),
        "b": standing.figures(result.b, result.pairs),
        "only_a": result.only_a,
        "only_b": result.only_b,
        "difference": result.difference,
        "interval": list(result.interval),
        "p_value": result.p_value,
        "left_out": result.left_out,
        "policy_errors": list(result.policy_errors),
        "beside": result.beside,
        "warnings": result.warnings,
        "tasks": [
            {
                "task": task,
                "instruction": tasks[task]["instruction"],
                "a": standing.figures(a, a.trials),
                "b": standing.figures(b, b.trials),
            }
            for task, (a, b) in result.tasks.items()
        ],
    }


def _name(request: Request) -> str:
    return _plain(request.path_params["name"])


def _plain(name: str) -> str:
    if not NAME.fullmatch(name):
        raise Missing(f"{name[:80]!r} is no run's name")
    return name
