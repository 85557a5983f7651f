"""`create_app` turns a Policy, or a function that loads one, into a FastAPI application."""

import functools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from vla_contract.memory import keep_freed_memory
from vla_contract.protocol import codec
from vla_contract.protocol.act_json import decode_act
from vla_contract.protocol.problems import Problem
from vla_contract.protocol.types import Policy
from vla_contract.server import openapi
from vla_contract.server.auth import TokenCheck
from vla_contract.server.batching import BatchQueue
from vla_contract.server.engine import PolicyEngine
from vla_contract.server.metrics import Metrics
from vla_contract.server.middleware import PROBES, TIMEOUT_S, RequestGuard
from vla_contract.server.service import DecodeAct, PolicyRoutes

MAX_BODY_BYTES = 16 * 2**20  # two 1080p images and more
_STATIC = "/docs/static"


class PlainRoute(APIRoute):
    """A route whose handler gets the request itself and returns the response, without further steps."""

    def get_route_handler(self) -> Any:
        return self.endpoint


def create_app(
    policy: Policy | Callable[[], Policy],
    *,
    max_batch: int | None = None,
    max_wait_ms: float = 100.0,
    queue_size: int = 64,
    token: str | None = None,
    token_file: Path | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    request_timeout_s: float = TIMEOUT_S,
    inline: bool = False,
    on_failure: Callable[[], None] | None = None,
    decode_act: DecodeAct = decode_act,
    act_schemas: tuple[Mapping[str, Any], Mapping[str, Any]] = (openapi.ACT_REQUEST, openapi.ACT_ANSWER),
    probes: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> FastAPI:
    """Return the application that serves a policy.

    policy          a Policy, or a function that loads and returns one; it is called in the background: `/livez`
                    answers at once and `/readyz` once weights are loaded and one inference is done
    max_batch       most observations in one call of `act`; at most, and by default, the policy's own `max_batch`
    max_wait_ms     longest wait for a batch to fill, if half an inference is not shorter; a lone client never waits
    queue_size      requests that may wait; one more is answered with 429 and Retry-After
    token           when set, every route but the probes requires `Authorization: Bearer <token>`
    token_file      further tokens by name, each with limits and a fair share of the queue (`server/token_file.py`)
    max_body_bytes  a longer body is answered with 413
    request_timeout_s  for a body to arrive, from when its head is complete; else 408
    inline          for policies that answer within a few ms and never block: the event loop calls them itself, one
                    request after the other. That saves the way to the policy's thread and back on busy cores; but
                    everything else waits while `act` runs, the probes too, and nothing is batched. Loading stays in
                    the background, on another thread than `act`
    on_failure      called once, from another thread, when the policy could not be loaded or stops answering
    decode_act      how `/act` reads a body and writes its answer, for clients of other policies
    act_schemas     JSON schemas of a request of `/act` and its answer, for `/openapi.json` and `/docs`
    probes          further names of `/readyz`, each with the JSON that it answers

    Raises ValueError for a setting out of range.
    """
    for name, value, lowest, highest in (
        ("max_batch", 1 if max_batch is None else max_batch, 1, 10**6),
        ("max_wait_ms", max_wait_ms, 0, 10_000),
        ("queue_size", queue_size, 1, 10**6),
        ("max_body_bytes", max_body_bytes, 1024, codec.MAX_BYTES),
    ):
        if not lowest <= value <= highest:
            raise ValueError(f"{name} is {value}; expected a number from {lowest} to {highest}")
    load = policy if isinstance(policy, type) or not isinstance(policy, Policy) else lambda: policy
    if not callable(load):
        raise ValueError(f"the policy is a {type(policy).__name__}; expected a Policy or a function that loads one")
    metrics, check = Metrics(), TokenCheck(token, token_file)
    engine = PolicyEngine(load, BatchQueue(queue_size, max_wait_ms / 1e3), metrics, max_batch, inline, on_failure)
    metrics.watch_tenants(lambda: (check.admin, *named) if (named := tuple(check.named)) else ())
    service = PolicyRoutes(engine, metrics, decode_act)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        keep_freed_memory()
        engine.start()
        yield
        engine.stop()

    app = FastAPIOffline(
        title="vla-lab policy",
        description="POST /v1/act and /v1/reset take msgpack, whose fields the README of shared/contract describes.",
        redoc_url=None,
        static_url=_STATIC,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.engine, app.state.metrics = engine, metrics

    async def ready_with(answer: Mapping[str, Any]) -> Mapping[str, Any]:
        engine.require_alive()
        return answer

    token_scheme = [Depends(HTTPBearer(auto_error=False))] if token is not None else []  # for the document only
    request_schema, answer_schema = act_schemas
    for path, handler, summary, body, answer in (
        ("/v1/act", service.v1_act, "the next actions for one observation", openapi.PACKED, openapi.PACKED),
        ("/v1/reset", service.v1_reset, "forget a session, or all of a prefix", openapi.PACKED, openapi.PACKED),
        ("/act", service.act, "the next action for one image and one instruction",
         openapi.json_content(request_schema), openapi.json_content(answer_schema)),
    ):  # fmt: skip
        app.router.add_api_route(
            path,
            handler,
            methods=["POST"],
            route_class_override=PlainRoute,
            summary=summary,
            response_class=Response,
            responses={200: {"description": summary, "content": answer}, **openapi.errors(openapi.BODY_ERRORS)},
            openapi_extra={"requestBody": {"required": True, "content": body}},
            dependencies=token_scheme,
        )
    guarded = {"responses": openapi.errors(openapi.ERRORS), "dependencies": token_scheme}
    app.get("/v1/info", summary="what the policy needs and returns", **guarded)(service.v1_info)
    app.get("/metrics", summary="metrics for Prometheus", response_class=PlainTextResponse, **guarded)(
        service.prometheus
    )
    probe_errors = openapi.errors(openapi.PROBE_ERRORS)
    app.get("/livez", summary="the process runs", responses=probe_errors)(service.livez)
    app.get("/readyz", summary="loaded, and one inference done", responses=probe_errors)(service.readyz)
    for path, members in probes.items():
        app.get(path, summary="as /readyz", responses=probe_errors)(functools.partial(ready_with, members))

    async def no_such_route(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            expected = (error.headers or {}).get("Allow", "another method")
            detail = f"{request.method} is not allowed on {request.url.path}; expected {expected}"
            raise Problem("method-not-allowed", detail, error.headers)
        if error.status_code == 404:
            detail = f"no route {request.url.path[:200]!r}; this service has {', '.join(app.openapi()['paths'])}"
            raise Problem("not-found", detail)
        raise Problem("bad-request", f"HTTP {error.status_code}: {error.detail}")

    app.add_exception_handler(HTTPException, no_such_route)
    # The page has the document in it: a browser sends the token as a password, which /openapi.json does not take.
    app.swagger_ui_parameters = {"spec": app.openapi()}
    guard = {"timeout_s": request_timeout_s, "probes": (*PROBES, *probes), "admin_paths": ("/metrics",)}
    app.add_middleware(
        RequestGuard, token=check, metrics=metrics, max_body_bytes=max_body_bytes, browser_paths=("/docs",), **guard
    )
    return app
