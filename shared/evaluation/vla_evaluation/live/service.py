"""The service over HTTP: JSON for commands, and one request per image.

A page requests news after its last number and gets a response as soon as there is any. Nothing is queued: a slow page
gets fewer images, none of them old. Each benchmark has a module that calls `main` with it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import tempfile
import time
from collections.abc import Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import tyro
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vla_common.serving import Serving
from vla_contract import ContractError, PolicyClient
from vla_contract.protocol.problems import Problem
from vla_contract.server.auth import TokenCheck, token_for
from vla_contract.server.metrics import Metrics
from vla_contract.server.middleware import RequestGuard, read_body
from vla_contract.server.serving import address, listen, uvicorn_config
from vla_evaluation import provenance
from vla_evaluation.benchmark import Benchmark
from vla_evaluation.live import commands
from vla_evaluation.live.session import Session
from vla_evaluation.routed import JSON, bad_request, json_response, read

BODY_BYTES = 16 * 2**10
NEWS_TIMEOUT_S = 10.0  # of a request for an image
CHECK_INTERVAL_S = 1.0  # between two checks of sessions' resources
POLICY_TIMEOUT_S = 1.0  # for a policy to answer its info
MAX_ENDED = 64  # ended sessions whose last news can still be read

log = logging.getLogger("vla_evaluation.live")


@dataclass(frozen=True)
class Limits:
    """Limits of sessions."""

    sessions: int = 8  # at once
    idle_s: float = 120.0  # without a request, until a session is closed
    undriven_s: float = 1800.0  # without a command, until a session is closed
    memory_gb: float = 4.0  # of one session's process

    def __post_init__(self):
        for name, value in self.to_dict().items():
            if value <= 0:
                raise ValueError(f"{name} is {value}; expected more than 0")

    def to_dict(self) -> dict[str, float]:
        """Return the limits by name."""
        return {limit.name: getattr(self, limit.name) for limit in fields(Limits)}


@dataclass(frozen=True)
class ServiceSettings(Serving, Limits):
    """An interactive simulator over HTTP: a process for each session.

    $VLALAB_TOKEN, if set, is required from clients and sent to policies; it must be set if the network can reach the
    service.
    """

    port: int = 8006  # 0: any free one, named in the log
    policies: str = ""  # name=URL, with commas between them: the only policies that sessions may use


@dataclass(eq=False)
class Sessions:
    """All sessions, by id; the last MAX_ENDED ended ones stay readable."""

    benchmark: Benchmark
    work: Path
    policies: Mapping[str, str]
    limits: Limits
    token: str | None = None
    all: dict[str, Session] = field(default_factory=dict)
    opened: int = 0

    def live(self) -> list[Session]:
        """Return the sessions whose process runs."""
        return [session for session in self.all.values() if not session.is_over]

    async def open(self, body: Mapping[str, Any]) -> Session:
        """Return a new session. ValueError for an invalid request, Problem (503) if no session or memory is free."""
        request = await asyncio.to_thread(commands.parse_request, self.benchmark, self.policies, body)
        if (count := len(self.live())) >= self.limits.sessions:
            reason = f"{count} sessions are already running; close one, or try again later"
            raise Problem.retry_after("busy", reason, 10.0)
        if (free := provenance.free_memory_gb()) < (needed := self.benchmark.worker_gb):
            raise Problem.retry_after("busy", f"a session needs {needed:g} GB of memory, {free:.1f} GB are free", 10.0)
        session = Session(request)
        self.all[session.id] = session  # it counts from here on
        self.opened += 1
        try:
            await session.start(self.benchmark.module, self.work, self.benchmark.worker_variables(self.opened - 1))
        except BaseException:
            del self.all[session.id]
            raise
        for ended in [existing for existing in self.all.values() if existing.is_over][:-MAX_ENDED]:
            del self.all[ended.id]
        return session

    async def watch(self) -> None:
        """End unused sessions and those beyond their limits, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            for session in self.live():
                if reason := self.over(session):
                    await session.end(reason)

    def over(self, session: Session) -> str:
        """Return the reason to end a session; empty if it may continue."""
        now, limits = time.monotonic(), self.limits
        if session.process is None:  # it is being started
            return ""
        if now - session.used > limits.idle_s:
            return f"closed, since no page used it for {limits.idle_s:g} s; open a new session"
        if now - session.driven > limits.undriven_s:
            return f"closed after {limits.undriven_s / 60:g} minutes without a command; open a new session"
        if session.rss_bytes() > limits.memory_gb * 1e9:
            return f"closed, since it used more than {limits.memory_gb:g} GB of memory; open a new session"
        return ""


def create_app(sessions: Sessions, check: TokenCheck) -> Starlette:
    """Return the application; its sessions end with it."""
    of = sessions.benchmark

    def session_of(request: Request) -> Session:
        """Return the session of a path, which is now in use. Problem (404) if there is none."""
        if (name := request.path_params["id"]) not in sessions.all:
            raise Problem("not-found", "session not found, or already closed; open a new one")
        session = sessions.all[name]
        session.used = time.monotonic()
        return session

    async def describe(request: Request) -> Response:
        """Respond with the benchmark, its tasks, the policies and the limits."""

        def list_tasks() -> dict[str, list[str]]:
            return {suite: [task.instruction for task in of.tasks(suite)] for suite in of.suites}

        return json_response({
            "benchmark": of.name, "suites": await asyncio.to_thread(list_tasks),
            "action": [asdict(part) for part in of.action], "control_hz": of.control_hz,
            "policies": list(sessions.policies), "sessions": len(sessions.live()), "limits": sessions.limits.to_dict(),
        })  # fmt: skip

    async def policies(request: Request) -> Response:
        """Respond with the policies, and whether each is ready now."""

        def is_ready(url: str) -> bool:
            try:
                with PolicyClient(url, sessions.token, POLICY_TIMEOUT_S, POLICY_TIMEOUT_S, retries=0) as client:
                    return bool(client.info())
            except ContractError:
                return False

        urls = sessions.policies
        ready = await asyncio.gather(*(asyncio.to_thread(is_ready, url) for url in urls.values()))
        rows = [{"name": name, "ready": is_up} for name, is_up in zip(urls, ready, strict=True)]
        return json_response({"policies": rows})

    async def open_session(request: Request) -> Response:
        session = await sessions.open(await read(request))
        return json_response({"id": session.id}, 201)

    async def frame(request: Request) -> Response:
        """Respond with news after number `after`; after NEWS_TIMEOUT_S with the latest."""
        session = session_of(request)
        numbers = []
        for name in ("after", "episode", "have"):
            text = request.query_params.get(name, "0")
            if not text.isdecimal() or len(text) > 12:
                raise ValueError(f"{name} is {text[:40]!r}; expected an integer of at least 0")
            numbers.append(int(text))
        after, episode, have = numbers
        await session.wait_for_news(after, NEWS_TIMEOUT_S)
        session.used = time.monotonic()
        return Response(session.message(episode, have), media_type="application/octet-stream")

    async def do(request: Request) -> Response:
        session = session_of(request)
        command = commands.check_command(await read(request), of.action, bool(session.request.policy))
        if command["do"] == "close":
            await session.end("closed")
            return json_response({"done": "close"})
        if command["do"] == "reset" and command["start"] is not None:
            start = session.request.with_start(command["start"])
            await asyncio.to_thread(start.require_init_state, of)
            command["start"] = start.start
        if session.is_over:
            raise ValueError(f"this session is over: {session.state['reason']}")
        session.driven = time.monotonic()
        session.send_command(command)
        return json_response({"done": command["do"]})

    async def film(request: Request) -> Response:
        _, blob = await session_of(request).run_job("film")
        return Response(blob, media_type="video/mp4")

    async def keep(request: Request) -> Response:
        session = session_of(request)
        await read_body(request, (JSON,))  # a form of another site can only send other types
        answer, _ = await session.run_job("keep")
        return json_response({"kept": answer["kept"]})

    async def ready(request: Request) -> Response:
        return json_response({"status": "ready", "sessions": len(sessions.live())})

    @asynccontextmanager
    async def lifespan(app: Starlette):
        watcher = asyncio.create_task(sessions.watch())
        yield
        watcher.cancel()
        await asyncio.gather(*(session.end("the service was stopped") for session in sessions.live()))

    routes = [
        Route("/v1/simulator", describe),
        Route("/v1/policies", policies),
        Route("/v1/sessions", open_session, methods=["POST"]),
        Route("/v1/sessions/{id}/frame", frame),
        Route("/v1/sessions/{id}/do", do, methods=["POST"]),
        Route("/v1/sessions/{id}/film", film),
        Route("/v1/sessions/{id}/keep", keep, methods=["POST"]),
        Route("/livez", ready),
        Route("/readyz", ready),
    ]
    guard = Middleware(RequestGuard, token=check, metrics=Metrics(), max_body_bytes=BODY_BYTES)
    return Starlette(routes=routes, middleware=[guard], exception_handlers={ValueError: bad_request}, lifespan=lifespan)


def parse_policies(text: str) -> dict[str, str]:
    """Return addresses by name. ValueError for what is not a list of name=URL."""
    policies = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, url = part.partition("=")
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) or not re.fullmatch(r"https?://[^\s,]+", url):
            raise ValueError(f"--policies has {part!r}; expected name=http://host:port, with commas between them")
        policies[name] = url
    return policies


def main(benchmark: Benchmark, prog: str) -> None:
    """Serve until SIGINT or SIGTERM."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(message)s")
    settings = tyro.cli(ServiceSettings, prog=prog)
    provenance.check_simulator(benchmark, log.warning)
    token, policies = token_for(settings.host), parse_policies(settings.policies)
    listener = listen(settings.host, settings.port)
    with tempfile.TemporaryDirectory(prefix="vlalab-live-") as work, listener:
        sessions = Sessions(benchmark, Path(work), policies, settings, token)
        config = uvicorn_config(create_app(sessions, TokenCheck(token)), "info", has_token=token is not None)
        log.info("listening on %s", address(listener))
        with suppress(KeyboardInterrupt):  # uvicorn raises it again after the orderly end
            uvicorn.Server(config).run(sockets=[listener])
