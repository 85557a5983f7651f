"""The HTTP face of a policy: `create_app` turns a Policy, or a function that loads one, into an application."""

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vla_contract.protocol import codec
from vla_contract.protocol.act_json import MEDIA_TYPE as JSON
from vla_contract.protocol.act_json import decode_act
from vla_contract.protocol.problems import MEDIA_TYPE as PROBLEM_TYPE
from vla_contract.protocol.problems import Problem
from vla_contract.protocol.types import Policy
from vla_contract.server import docs, openapi
from vla_contract.server.auth import TokenCheck
from vla_contract.server.batching import BatchQueue
from vla_contract.server.body import TIMEOUT_S, Budget
from vla_contract.server.engine import Engine
from vla_contract.server.exchange import Answer, Endpoint
from vla_contract.server.exchange import Request as Received
from vla_contract.server.metrics import Metrics
from vla_contract.server.service import DecodeAct, Service

MAX_BODY_BYTES = 16 * 2**20  # two 1080p pictures and room to spare


class PolicyApp(Starlette):
    """Takes a request straight to its endpoint, which answers every fault itself.

    Starlette's layers around a route cost what every `/v1/act` would pay. They stay for everything else, and for all
    requests once somebody adds a middleware.
    """

    def __init__(self, **settings):
        super().__init__(**settings)
        self.direct: dict[tuple[str, str], Endpoint] = {}

    async def __call__(self, scope, receive, send) -> None:
        plain = scope["type"] == "http" and not self.user_middleware
        endpoint = self.direct.get((scope["method"], scope["path"])) if plain else None
        await (endpoint or super().__call__)(scope, receive, send)


def create_app(
    policy: Policy | Callable[[], Policy],
    *,
    max_batch: int | None = None,
    max_wait_ms: float = 100.0,
    queue_size: int = 64,
    token: str | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    request_timeout_s: float = TIMEOUT_S,
    inline: bool = False,
    on_failure: Callable[[], None] | None = None,
    decode_act: DecodeAct = decode_act,
    act_schemas: tuple[Mapping, Mapping] = (openapi.ACT_REQUEST, openapi.ACT_ANSWER),
    probes: Mapping[str, Mapping] = MappingProxyType({}),
) -> PolicyApp:
    """Returns the application that serves a policy.

    policy          a Policy, or a function that loads and returns one; it is called in the background, so that
                    `/livez` answers at once and `/readyz` once weights are loaded and one inference is done
    max_batch       most observations in one call of `act`; at most, and by default, the policy's own `max_batch`
    max_wait_ms     longest wait for a batch to fill, if half an inference is not shorter; a lone client never waits
    queue_size      requests that may wait; one more is answered with 429 and Retry-After
    token           when set, every route but the probes asks for `Authorization: Bearer <token>`
    max_body_bytes  a longer body is answered with 413
    request_timeout_s  for a request to arrive, head and body; then it is answered with 408
    inline          for policies that answer within a few ms and never block: the event loop calls them itself, one
                    request after the other. That saves the way to the policy's thread and back on busy cores; but
                    everything else waits while `act` runs, the probes too, nothing is batched, and what arrives
                    meanwhile waits in its socket, uncounted: no 429, no 504. Loading stays in the background,
                    on another thread than `act`
    on_failure      called once, from another thread, when the policy could not be loaded or answers no more
    decode_act      how `/act` reads a body and writes its answer; another policy's old clients may speak otherwise
    act_schemas     JSON schemas of what `/act` takes and answers, for `/openapi.json` and `/docs`
    probes          further routes that are `/readyz` to a policy's old clients, each with the JSON that it answers

    Raises ValueError for a setting out of range.
    """
    _check_settings(max_batch, max_wait_ms, queue_size, max_body_bytes)
    metrics = Metrics()
    load = policy if isinstance(policy, type) or not isinstance(policy, Policy) else lambda: policy
    if not callable(load):
        raise ValueError(f"the policy is a {type(policy).__name__}; expected a Policy or a function that loads one")
    engine = Engine(load, BatchQueue(queue_size, max_wait_ms / 1e3), metrics, max_batch, inline, on_failure)
    service = Service(engine, metrics, decode_act)
    check = TokenCheck(token)

    @asynccontextmanager
    async def lifespan(app: Starlette):
        engine.start()
        yield
        engine.stop()

    described = openapi.document(check.required, *act_schemas, probes)
    app = PolicyApp(lifespan=lifespan)
    app.router.redirect_slashes = False
    app.state.engine, app.state.metrics = engine, metrics
    budget = Budget()
    for method, route, handler, media_types, guard, admit in (
        ("POST", "/v1/act", service.v1_act, codec.MEDIA_TYPES, check, engine.admit),
        ("POST", "/v1/reset", service.v1_reset, codec.MEDIA_TYPES, check, engine.require_ready),
        ("GET", "/v1/info", service.v1_info, (), check, None),
        ("POST", "/act", service.act, (JSON,), check, engine.admit),
        ("GET", "/metrics", service.prometheus, (), check, None),
        ("GET", "/openapi.json", _always(json.dumps(described), JSON), (), check, None),
        ("GET", "/docs", _always(docs.page(described), docs.MEDIA_TYPE), (), check, None),
        ("GET", "/livez", service.livez, (), None, None),
        ("GET", "/readyz", service.readyz, (), None, None),
        *(("GET", route, _when_ready(engine, answer), (), None, None) for route, answer in probes.items()),
    ):
        settings = {"max_body_bytes": max_body_bytes, "body_timeout_s": request_timeout_s, "budget": budget}
        settings |= {"admit": admit, "for_people": route == "/docs"}
        endpoint = Endpoint(route, handler, metrics, guard, media_types, **settings)
        app.router.routes.append(Route(route, endpoint, methods=[method]))
        app.direct[method, route] = endpoint
    app.add_exception_handler(HTTPException, _no_such_route)
    return app


def _always(text: str, media_type: str) -> Callable[[Received], Awaitable[Answer]]:
    answer = Answer(text.encode(), media_type)

    async def handler(request: Received) -> Answer:
        return answer

    return handler


def _when_ready(engine: Engine, value: Mapping) -> Callable[[Received], Awaitable[Answer]]:
    answer = Answer(json.dumps(dict(value)).encode(), JSON)

    async def handler(request: Received) -> Answer:
        engine.require_alive()
        return answer

    return handler


def _check_settings(max_batch: int | None, max_wait_ms: float, queue_size: int, max_body_bytes: int) -> None:
    if max_batch is not None and max_batch < 1:
        raise ValueError(f"max_batch is {max_batch}; expected 1 or more")
    if not 0 <= max_wait_ms <= 10_000:
        raise ValueError(f"max_wait_ms is {max_wait_ms}; expected milliseconds from 0 to 10000")
    if queue_size < 1:
        raise ValueError(f"queue_size is {queue_size}; expected 1 or more")
    if not 1024 <= max_body_bytes <= codec.MAX_BYTES:
        raise ValueError(f"max_body_bytes is {max_body_bytes}; expected bytes from 1024 to {codec.MAX_BYTES}")


async def _no_such_route(request: Request, error: HTTPException) -> Response:
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        detail = f"{request.method} is not allowed on {request.url.path}; expected {allowed}"
        return _response(Problem("method-not-allowed", detail, error.headers))
    if error.status_code == 404:
        routes = ", ".join(route.path for route in request.app.routes)
        return _response(Problem("not-found", f"no route {request.url.path[:200]!r}; this service has {routes}"))
    return _response(Problem("bad-request", f"HTTP {error.status_code}: {error.detail}"))


def _response(problem: Problem) -> Response:
    return Response(problem.json(), problem.status, problem.headers, PROBLEM_TYPE)
