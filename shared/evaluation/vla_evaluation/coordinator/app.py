"""The evaluator's side over HTTP: what a run is, the calls of its store, and the files of its episodes."""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vla_contract.protocol.problems import Problem
from vla_contract.server.auth import BIND, TokenCheck, in_container, require_token_beyond_loopback
from vla_contract.server.metrics import Metrics
from vla_contract.server.middleware import RequestGuard, read_body
from vla_contract.server.serving import address, listen, uvicorn_config
from vla_evaluation import hosts
from vla_evaluation.coordinator import VERSION, calls, schemas
from vla_evaluation.coordinator.desk import Desk
from vla_evaluation.coordinator.gauges import Gauges
from vla_evaluation.routed import JSON, bad_request, told
from vla_evaluation.runs.folders import STORE, explain_os_error
from vla_evaluation.store.records import StoreError
from vla_evaluation.store.runstore import RunStore

BINARY = "application/octet-stream"
CALL_BYTES = 256 * 2**10
FILE_BYTES = 64 * 2**20
GONE = "session-lost"  # the problem that tells a machine that its part in the run is over


class Coordinator:
    """A run that other machines may join. `hosts_left` and `end` are for the evaluator's own thread."""

    def __init__(self, run: calls.Held, about: Mapping[str, Any]):
        self.run, self.about = run, about
        self.over = ""  # why nobody is answered any more
        self.url = ""

    def hosts_left(self) -> list[str]:
        """Returns the machines that are still at it: joined, not gone, and heard of within a lease's time."""
        silent = self.run.now() - self.run.job.lease_s
        return [host.name for host in list(self.run.hosts.values()) if host.heard > silent]

    def shares(self, store: RunStore) -> list[hosts.Share]:
        """Returns what each machine did in this invocation."""
        known = {host.name: host.wanted for host in list(self.run.hosts.values())}
        return hosts.shares(store.by_worker(self.run.invocation), known) if known else []

    def end(self, why: str) -> None:
        """Refuses every call from now on, in these words."""
        self.over = why


class Handlers:
    """What the routes do."""

    desk: Desk

    def __init__(self, of: Coordinator, metrics: Metrics):
        self.of, self.run, self.metrics = of, of.run, metrics
        self.gauges = Gauges(metrics.registry)

    async def about(self, request: Request) -> Response:
        return told({**self.of.about, "version": VERSION, "invocation": self.run.invocation})

    async def call(self, request: Request) -> Response:
        """Carries out a call of `calls.CALLS`."""
        name = request.path_params["name"]
        if name not in calls.CALLS:
            raise Problem("not-found", f"there is no call {name[:40]!r}; these are: {', '.join(calls.CALLS)}")
        schema, _ = calls.CALLS[name]
        body = await read_body(request, (JSON,))
        if len(body) > CALL_BYTES:
            detail = f"the body has {len(body)} bytes; expected at most {CALL_BYTES}"
            raise Problem("too-large", detail, max_body_bytes=CALL_BYTES)
        try:
            call = schema.model_validate_json(body)
        except ValidationError as error:
            raise Problem("bad-request", schemas.explain(error)) from error
        self._require_current(call.invocation, call.key)
        return told({"value": await self.desk.do(name, call)})

    async def file(self, request: Request) -> Response:
        """Keeps an episode's file until the call that publishes it; {"held": false} where the lease is gone."""
        query = request.query_params
        token, kind, digest, invocation = (query.get(name, "") for name in ("token", "kind", "sha256", "invocation"))
        self._require_current(int(invocation) if invocation.isdecimal() else None, query.get("key"))
        body = await read_body(request, (BINARY,))
        if not re.fullmatch(r"[0-9a-f]{64}", digest) or hashlib.sha256(body).hexdigest() != digest:
            raise ValueError(f"the file's SHA-256 is not {digest[:70]!r}, as was announced; send it again")
        held = await asyncio.to_thread(self._keep, token, kind, body)
        return told({"held": held})

    def _keep(self, token: str, kind: str, body: bytes) -> bool:
        with RunStore(self.run.folder / STORE, readonly=True, check=False) as store:
            lease = store.by_token(token)
        if lease is None:
            return False
        path = calls.draft(self.run, lease, kind)
        try:
            with open(path, "wb") as out:
                out.write(body)
                out.flush()
                os.fsync(out.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return True

    def _require_current(self, invocation: int | None, key: str | None) -> None:
        """Raises Problem (409) where this is not what the sender joined; hears the sender."""
        if self.of.over or invocation != self.run.invocation:
            raise Problem(GONE, self.of.over or "the run was begun anew since; join it again")
        host = self.run.hosts.get(key)
        if host and host.heard > -math.inf:
            host.heard = self.run.now()

    async def prometheus(self, request: Request) -> Response:
        page, media_type = await asyncio.to_thread(self._page)
        return Response(page, media_type=media_type)

    def _page(self) -> tuple[bytes, str]:
        with RunStore(self.run.folder / STORE, readonly=True, check=False) as store:
            self.gauges.fill(store.counts(), self.of.shares(store), len(self.of.hosts_left()))
        return self.metrics.page()

    async def ready(self, request: Request) -> Response:
        return told({"status": "ready", "hosts": self.of.hosts_left()})


def create_app(of: Coordinator, check: TokenCheck) -> Starlette:
    """Returns the application; it has its store while it runs."""
    metrics = Metrics()
    handlers = Handlers(of, metrics)

    @asynccontextmanager
    async def lifespan(app: Starlette):
        handlers.desk = Desk(of.run.folder / STORE, of.run)
        yield
        handlers.desk.close()

    async def store_failed(request: Request, error: Exception) -> Response:
        message = explain_os_error(error, of.run.folder) if isinstance(error, OSError) else str(error)
        raise Problem("internal", message) from error

    routes = [
        Route("/v1/run", handlers.about),
        Route("/v1/calls/{name}", handlers.call, methods=["POST"]),
        Route("/v1/files", handlers.file, methods=["POST"]),
        Route("/metrics", handlers.prometheus),
        Route("/livez", handlers.ready),
        Route("/readyz", handlers.ready),
    ]
    budget_bytes = 4 * FILE_BYTES  # of all bodies at once
    guard = Middleware(RequestGuard, token=check, metrics=metrics, max_body_bytes=FILE_BYTES, budget_bytes=budget_bytes)
    handled = {ValueError: bad_request, StoreError: store_failed, OSError: store_failed}
    return Starlette(routes=routes, middleware=[guard], exception_handlers=handled, lifespan=lifespan)


@contextmanager
def coordinating(listen_at: str, token: str | None, of: Coordinator) -> Iterator[Coordinator]:
    """Serves a run for as long as it lasts, from a thread of its own.

    listen_at: "host:port"; port 0: any. Raises ValueError where the network would reach it without a token, OSError
    where the address cannot be had.
    """
    host, port = read_address(listen_at)
    require_token_beyond_loopback(host, token)
    listener = listen(host, port)
    bind = os.environ.get(BIND)
    of.url = f"http://{bind}:{port}" if bind and in_container() else address(listener)
    config = uvicorn_config(create_app(of, TokenCheck(token)), "warning", has_token=token is not None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="coordinator", daemon=True)
    thread.start()
    try:
        yield of
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


def read_address(text: str) -> tuple[str, int]:
    """Returns host and port of "host:port". ValueError for anything else."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"--listen {text!r} is no address; expected host:port, for example 0.0.0.0:8100")
    return host.strip("[]"), int(port)
