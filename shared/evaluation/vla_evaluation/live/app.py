"""The service over HTTP: JSON for what people do, and one request per picture.

A reader asks for what is newer than it has, and is answered as soon as there is something: so nothing is ever queued,
a slow reader gets fewer pictures and none that are old, and each draws only what it will see.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vla_contract import ContractError, PolicyClient
from vla_contract.protocol.problems import Problem
from vla_contract.server.auth import TokenCheck
from vla_contract.server.metrics import Metrics
from vla_contract.server.middleware import RequestGuard, read_body
from vla_evaluation import provenance
from vla_evaluation.benchmark import Benchmark
from vla_evaluation.live import controls, opening
from vla_evaluation.live.session import Session
from vla_evaluation.routed import JSON, bad_request, read, told

BINARY, FILM = "application/octet-stream", "video/mp4"
BODY_BYTES = 16 * 2**10
NEWS_S = 10.0  # a request for a picture waits so long at most
LOOK_S = 1.0  # between two looks at what sessions take
POLICY_S = 1.0  # for a policy to say that it is there
REMEMBERED = 64  # sessions that have ended, for whoever asks what became of one


@dataclass(frozen=True)
class Limits:
    """What sessions may take. idle_s: without any request; undriven_s: looked at, with nothing done."""

    sessions: int = 8
    idle_s: float = 120.0
    undriven_s: float = 1800.0
    memory_gb: float = 4.0

    def __post_init__(self):
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"{name} is {value}; expected more than 0")


@dataclass(eq=False)
class Sessions:
    """All sessions, by id; the ones that ended last stay until others take their place."""

    benchmark: Benchmark
    work: Path
    policies: Mapping[str, str]
    limits: Limits
    token: str | None = None
    all: dict[str, Session] = field(default_factory=dict)
    opened: int = 0

    def live(self) -> list[Session]:
        """Returns those whose process runs."""
        return [one for one in self.all.values() if not one.is_over]

    async def open(self, asked: Mapping[str, Any]) -> Session:
        """Returns a new session. ValueError for what there is not, Problem (503) where there is no room."""
        wanted = await asyncio.to_thread(self.read, asked)
        self.require_room()
        session = Session(wanted)
        self.all[session.id] = session  # it counts from here on
        variables = self.benchmark.worker_variables(self.opened)
        self.opened += 1
        try:
            await session.start(self.benchmark.module, self.work, variables)
        except BaseException:
            del self.all[session.id]
            raise
        for one in [one for one in self.all.values() if one.is_over][:-REMEMBERED]:
            del self.all[one.id]
        return session

    def read(self, asked: Mapping[str, Any]) -> opening.Opening:
        """Returns what is asked for. ValueError for what there is not."""
        return self.judged(opening.read(self.benchmark, self.policies, asked))

    def judged(self, wanted: opening.Opening) -> opening.Opening:
        """Returns it. ValueError for an init state that its task does not have."""
        if wanted.init is not None:
            states = self.benchmark.init_states(self.benchmark.tasks(wanted.suite)[wanted.task])
            opening.whole("start.init", wanted.init, len(states))
        return wanted

    def require_room(self) -> None:
        """Raises Problem (503) where one more session would be too many, or its memory is not free."""
        if (count := len(self.live())) >= self.limits.sessions:
            raise Problem.retry_after("busy", f"{count} sessions run already; close one, or try again later", 10.0)
        if (free := provenance.free_memory_gb()) < self.benchmark.worker_gb:
            needed = self.benchmark.worker_gb
            raise Problem.retry_after("busy", f"a session needs {needed:g} GB of memory, {free:.1f} GB are free", 10.0)

    def find(self, name: str) -> Session:
        """Returns a session. Problem (404) for none."""
        if name not in self.all:
            raise Problem("not-found", "this session is not known here (any more); open a new one")
        session = self.all[name]
        session.used = time.monotonic()
        return session

    async def watch(self) -> None:
        """Ends, for as long as it runs, sessions that nobody uses and those that take too much."""
        while True:
            await asyncio.sleep(LOOK_S)
            for session in self.live():
                if why := self.over(session):
                    await session.end(why)

    def over(self, session: Session) -> str:
        """Returns why a session has to end; empty where it may go on."""
        now, limits = time.monotonic(), self.limits
        if session.process is None:  # it is being started
            return ""
        if now - session.used > limits.idle_s:
            return f"closed, since nobody looked at it for {limits.idle_s:g} s; start anew"
        if now - session.driven > limits.undriven_s:
            return f"closed, since nothing was done in it for {limits.undriven_s / 60:g} minutes; start anew"
        if session.rss_bytes() > limits.memory_gb * 1e9:
            return f"closed, since it took more than {limits.memory_gb:g} GB of memory; start anew"
        return ""

    async def close(self) -> None:
        """Ends all."""
        await asyncio.gather(*(one.end("the service was stopped") for one in self.live()))


class Handlers:
    """What the routes do."""

    def __init__(self, sessions: Sessions):
        self.sessions, self.of = sessions, sessions.benchmark

    async def about(self, request: Request) -> Response:
        return told(await asyncio.to_thread(self.describe))

    def describe(self) -> dict[str, Any]:
        """Returns what can be opened here."""
        of, sessions = self.of, self.sessions
        suites = {suite: [task.instruction for task in of.tasks(suite)] for suite in of.suites}
        return {
            "benchmark": of.name,
            "suites": suites,
            "action": [asdict(part) for part in of.action],
            "control_hz": of.control_hz,
            "policies": list(sessions.policies),
            "sessions": len(sessions.live()),
            "limits": asdict(sessions.limits),
        }

    async def policies(self, request: Request) -> Response:
        """Answers which policies are there now, and which of them can be asked for actions."""
        named = self.sessions.policies
        found = await asyncio.gather(*(asyncio.to_thread(self.is_ready, url) for url in named.values()))
        return told({"policies": [{"name": name, "ready": ready} for name, ready in zip(named, found, strict=True)]})

    def is_ready(self, url: str) -> bool:
        """Returns whether a policy answers what it is."""
        try:
            with PolicyClient(url, self.sessions.token, POLICY_S, POLICY_S, retries=0) as client:
                return bool(client.info())
        except ContractError:
            return False

    async def open(self, request: Request) -> Response:
        session = await self.sessions.open(await read(request))
        return told({"id": session.id}, 201)

    async def frame(self, request: Request) -> Response:
        """Answers with what is newer than number `after`, within NEWS_S, else with what there is."""
        session = self.sessions.find(request.path_params["id"])
        after, episode, have = (_number(request.query_params, name) for name in ("after", "episode", "have"))
        await session.news(after, NEWS_S)
        session.used = time.monotonic()
        return Response(session.message(episode, have), media_type=BINARY)

    async def do(self, request: Request) -> Response:
        session = self.sessions.find(request.path_params["id"])
        asked = await read(request)
        command = controls.checked(asked, self.of.action, bool(session.opening.policy))
        if command["do"] == "close":
            await session.end("closed")
            return told({"done": "close"})
        if command["do"] == "reset" and command["start"] is not None:
            wanted = await asyncio.to_thread(self.sessions.judged, session.opening.starting(command["start"]))
            command["start"] = {"drawn": wanted.drawn} if wanted.init is None else {"init": wanted.init}
        if session.is_over:
            raise ValueError(f"this session is over: {session.state['reason']}")
        session.driven = time.monotonic()
        session.tell(command)
        return told({"done": command["do"]})

    async def film(self, request: Request) -> Response:
        _, blob = await self.sessions.find(request.path_params["id"]).ask("film")
        return Response(blob, media_type=FILM)

    async def keep(self, request: Request) -> Response:
        session = self.sessions.find(request.path_params["id"])
        await read_body(request, (JSON,))  # another type is what a form of another site's page can send
        answer, _ = await session.ask("keep")
        return told({"kept": answer["kept"]})

    async def ready(self, request: Request) -> Response:
        return told({"status": "ready", "sessions": len(self.sessions.live())})


def create_app(sessions: Sessions, check: TokenCheck) -> Starlette:
    """Returns the application; its sessions end with it."""
    handlers = Handlers(sessions)

    @asynccontextmanager
    async def lifespan(app: Starlette):
        watching = asyncio.create_task(sessions.watch())
        yield
        watching.cancel()
        await sessions.close()

    routes = [
        Route("/v1/simulator", handlers.about),
        Route("/v1/policies", handlers.policies),
        Route("/v1/sessions", handlers.open, methods=["POST"]),
        Route("/v1/sessions/{id}/frame", handlers.frame),
        Route("/v1/sessions/{id}/do", handlers.do, methods=["POST"]),
        Route("/v1/sessions/{id}/film", handlers.film),
        Route("/v1/sessions/{id}/keep", handlers.keep, methods=["POST"]),
        Route("/livez", handlers.ready),
        Route("/readyz", handlers.ready),
    ]
    guard = Middleware(RequestGuard, token=check, metrics=Metrics(), max_body_bytes=BODY_BYTES)
    return Starlette(routes=routes, middleware=[guard], exception_handlers={ValueError: bad_request}, lifespan=lifespan)


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "0")
    if not text.isdecimal() or len(text) > 12:
        raise ValueError(f"{name} is {text[:40]!r}; expected a whole number from 0")
    return int(text)
