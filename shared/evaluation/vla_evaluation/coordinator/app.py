"""The evaluator's side over HTTP: the run's description, the calls of its store, and the files of its episodes."""

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
from prometheus_client import Gauge
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
from vla_evaluation.coordinator import VERSION, calls
from vla_evaluation.routed import JSON, bad_request, json_response
from vla_evaluation.runs.directories import explain_os_error
from vla_evaluation.store.records import StoreError, total
from vla_evaluation.store.runstore import STORE, RunStore

BINARY = "application/octet-stream"
CALL_BYTES = 256 * 2**10
FILE_BYTES = 64 * 2**20
GONE = "session-lost"  # problem type that tells a machine to leave the run
STATES = ("planned", "done", "successes", "policy_errors", "leased", "pending", "broken")
MACHINE_GAUGES = {
    "workers": "Workers that have had an episode of this invocation",
    "episodes": "Episodes finished in this invocation",
    "steps": "Policy steps of those",
    "seconds": "Time of its workers in those",
    "faults": "Attempts that ended without a result",
}


class Coordinator:
    """A run that other machines may join. `active_hosts` and `end_reason` are for the evaluator's own thread."""

    store: calls.BatchedStore

    def __init__(self, run: calls.ActiveRun, description: Mapping[str, Any]):
        self.run, self.description = run, description
        self.end_reason = ""  # once set, all further calls are rejected with it
        self.url = ""
        self.metrics = Metrics()
        registry = self.metrics.registry
        self.episodes = Gauge("vla_run_episodes", "Episodes of the run by state", ("state",), registry=registry)
        self.machines = Gauge("vla_run_machines", "Machines that have joined and are active", registry=registry)
        self.shares_of = {
            name: Gauge(f"vla_machine_{name}", text, ("host",), registry=registry)
            for name, text in MACHINE_GAUGES.items()
        }

    def active_hosts(self) -> list[str]:
        """Return the machines that joined, did not leave, and were heard of within a lease's time."""
        silent = self.run.now() - self.run.job.lease_s
        return [host.name for host in list(self.run.hosts.values()) if host.heard > silent]

    def shares(self, store: RunStore) -> list[hosts.Share]:
        """Return each machine's share of this invocation."""
        hostnames = {host.name: host.hostname for host in list(self.run.hosts.values())}
        return hosts.shares(store.by_worker(self.run.invocation), hostnames) if hostnames else []

    # --- routes -------------------------------------------------------------------------------------------

    async def describe(self, request: Request) -> Response:
        return json_response({**self.description, "version": VERSION, "invocation": self.run.invocation})

    async def call(self, request: Request) -> Response:
        """Carry out a call of `calls.Calls`."""
        name = request.path_params["name"]
        if name not in calls.ARGUMENTS:
            raise Problem(
                "not-found", f"call {name[:40]!r} does not exist; expected one of {', '.join(calls.ARGUMENTS)}"
            )
        body = await read_body(request, (JSON,), CALL_BYTES)
        try:
            arguments = calls.ARGUMENTS[name].model_validate_json(body)
        except ValidationError as error:
            raise Problem("bad-request", calls.explain(error)) from error
        self._require_current(arguments.invocation, arguments.key)
        return json_response({"value": await self.store.call(name, arguments)})

    async def file(self, request: Request) -> Response:
        """Store an episode's file until the call that publishes it; {"held": false} if the lease has ended."""
        query = request.query_params
        token, kind, digest, invocation = (query.get(name, "") for name in ("token", "kind", "sha256", "invocation"))
        self._require_current(int(invocation) if invocation.isdecimal() else None, query.get("key"))
        body = await read_body(request, (BINARY,))
        if not re.fullmatch(r"[0-9a-f]{64}", digest) or hashlib.sha256(body).hexdigest() != digest:
            raise ValueError(f"the file's SHA-256 is not {digest[:70]!r}; send it again")
        return json_response({"held": await asyncio.to_thread(self._save_draft, token, kind, body)})

    def _save_draft(self, token: str, kind: str, body: bytes) -> bool:
        with RunStore(self.run.directory / STORE, readonly=True, check=False) as store:
            lease = store.by_token(token)
        if lease is None:
            return False
        path = self.run.draft(lease, kind)
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
        """Raise Problem (409) for another invocation than the sender joined; note that the sender is alive."""
        if self.end_reason or invocation != self.run.invocation:
            raise Problem(GONE, self.end_reason or "the run was restarted; join it again")
        host = self.run.hosts.get(key)
        if host and host.heard > -math.inf:
            host.heard = self.run.now()

    async def prometheus(self, request: Request) -> Response:
        page, media_type = await asyncio.to_thread(self._metrics_page)
        return Response(page, media_type=media_type)

    def _metrics_page(self) -> tuple[bytes, str]:
        with RunStore(self.run.directory / STORE, readonly=True, check=False) as store:
            counts, shares = store.counts(), self.shares(store)
        for state in STATES:
            self.episodes.labels(state).set(total(counts, state))
        self.machines.set(len(self.active_hosts()))
        for share in shares:
            for name, gauge in self.shares_of.items():
                gauge.labels(share.host).set(getattr(share, name))
        return self.metrics.page()

    async def ready(self, request: Request) -> Response:
        return json_response({"status": "ready", "hosts": self.active_hosts()})


def create_app(coordinator: Coordinator, check: TokenCheck) -> Starlette:
    """Return the application; its store is open while it runs."""

    @asynccontextmanager
    async def lifespan(app: Starlette):
        coordinator.store = calls.BatchedStore(coordinator.run.directory / STORE, coordinator.run)
        yield
        await coordinator.store.close()

    async def store_failed(request: Request, error: Exception) -> Response:
        message = explain_os_error(error, coordinator.run.directory) if isinstance(error, OSError) else str(error)
        raise Problem("internal", message) from error

    routes = [
        Route("/v1/run", coordinator.describe),
        Route("/v1/calls/{name}", coordinator.call, methods=["POST"]),
        Route("/v1/files", coordinator.file, methods=["POST"]),
        Route("/metrics", coordinator.prometheus),
        Route("/livez", coordinator.ready),
        Route("/readyz", coordinator.ready),
    ]
    limits = {"max_body_bytes": FILE_BYTES, "budget_bytes": 4 * FILE_BYTES}
    guard = Middleware(RequestGuard, token=check, metrics=coordinator.metrics, **limits)
    handled = {ValueError: bad_request, StoreError: store_failed, OSError: store_failed}
    return Starlette(routes=routes, middleware=[guard], exception_handlers=handled, lifespan=lifespan)


@contextmanager
def coordinating(listen_at: str, token: str | None, coordinator: Coordinator) -> Iterator[Coordinator]:
    """Serve a run from a thread of its own.

    listen_at: "host:port"; port 0: any. Raises ValueError if the network could reach it without a token, OSError
    if the address cannot be bound.
    """
    host, port = read_address(listen_at)
    require_token_beyond_loopback(host, token)
    listener = listen(host, port)
    bind = os.environ.get(BIND)
    coordinator.url = f"http://{bind}:{port}" if bind and in_container() else address(listener)
    config = uvicorn_config(create_app(coordinator, TokenCheck(token)), "warning", has_token=token is not None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="coordinator", daemon=True)
    thread.start()
    try:
        yield coordinator
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


def read_address(text: str) -> tuple[str, int]:
    """Return host and port of "host:port". ValueError for anything else."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"--listen {text!r} is not an address; expected host:port, for example 0.0.0.0:8100")
    return host.strip("[]"), int(port)
