"""The handlers of a policy's routes, on the event loop: from a request to the engine and back."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response

from vla_contract import __version__
from vla_contract.protocol import codec
from vla_contract.protocol.act_json import MEDIA_TYPE as JSON
from vla_contract.protocol.info import PolicyInfo
from vla_contract.protocol.messages import check_needs, decode_observation, decode_reset, encode_chunk
from vla_contract.protocol.types import ActionChunk, Observation
from vla_contract.server.engine import PolicyEngine
from vla_contract.server.metrics import Metrics
from vla_contract.server.middleware import read_body
from vla_contract.server.outcomes import Outcome
from vla_contract.server.sessions import SessionTable
from vla_contract.server.tenants import Tenant

DEFAULT_TIMEOUT_S = 60.0  # a client that does not send X-Timeout-S is assumed to wait this long
DecodeAct = Callable[[bytes, PolicyInfo, str], tuple[Observation, Callable[[ActionChunk], bytes]]]


class PolicyRoutes:
    """The routes of one policy. Only the engine's thread touches the policy itself."""

    def __init__(self, engine: PolicyEngine, metrics: Metrics, decode_act: DecodeAct):
        self._engine, self._metrics, self._decode_act = engine, metrics, decode_act
        self._sessions = SessionTable(self._forget)

    async def v1_act(self, request: Request) -> Response:
        tenant: Tenant = request.state.tenant
        self._engine.admit(tenant)
        body = await read_body(request, codec.MEDIA_TYPES)
        start = time.perf_counter()
        info = self._engine.require_ready()
        observation = _scoped(decode_observation(body, info.needs_privileged), tenant)
        check_needs(observation, info)
        decode_s = time.perf_counter() - start
        outcome = await self._infer(request, observation, info, client=observation.session)
        start = time.perf_counter()
        stages_s = {"decode": decode_s, "queue": outcome.queue_s, "infer": outcome.infer_s}

        def timings_ms() -> dict[str, float]:
            stages_s["encode"] = time.perf_counter() - start
            return {stage: round(seconds * 1e3, 4) for stage, seconds in stages_s.items()}

        packed = encode_chunk(outcome.chunk, timings_ms)
        after = BackgroundTask(self._after_response, stages_s, outcome.batch)
        return Response(packed, media_type=codec.MEDIA_TYPE, background=after)

    async def act(self, request: Request) -> Response:
        tenant: Tenant = request.state.tenant
        self._engine.admit(tenant)
        body = await read_body(request, (JSON,))
        start = time.perf_counter()
        info = self._engine.require_ready()
        observation, encode = self._decode_act(body, info, f"act-{request.state.request_id}")
        observation = _scoped(observation, tenant)
        check_needs(observation, info)
        stages_s = {"decode": time.perf_counter() - start}
        # No name: most of these clients open a connection per request, so no batch waits for their next one.
        outcome = await self._infer(request, observation, info, client="")
        start = time.perf_counter()
        packed = encode(outcome.chunk)
        stages_s |= {"queue": outcome.queue_s, "infer": outcome.infer_s, "encode": time.perf_counter() - start}
        after = BackgroundTask(self._after_response, stages_s, outcome.batch)
        return Response(packed, media_type=JSON, background=after)

    async def v1_reset(self, request: Request) -> Response:
        self._engine.require_ready()
        name, is_prefix = decode_reset(await read_body(request, codec.MEDIA_TYPES))
        scoped = request.state.tenant.scoped(name)
        sessions = self._sessions.beginning(scoped) if is_prefix else [scoped]
        for session in sessions:
            self._sessions.drop(session)
        self._metrics.sessions.set(len(self._sessions))
        if sessions:
            await self._engine.reset(sessions)
        return Response(codec.pack({"prefix" if is_prefix else "session": name}), media_type=codec.MEDIA_TYPE)

    async def v1_info(self) -> dict[str, Any]:
        return {**self._engine.require_ready().to_dict(), "version": __version__}

    async def livez(self) -> dict[str, str]:
        return {"status": "alive"}

    async def readyz(self) -> dict[str, str]:
        return {"status": "ready", "policy": self._engine.require_alive().name}

    async def prometheus(self) -> Response:
        page, media_type = self._metrics.page()
        return Response(page, media_type=media_type)

    async def _infer(self, request: Request, observation: Observation, info: PolicyInfo, client: str) -> Outcome:
        if not info.stateful:
            return await self._submit(request, observation, client)
        request_id = request.state.request_id
        future = self._sessions.answered(observation, request_id)
        if future is not None:
            return Outcome((await asyncio.shield(future)).chunk)  # a repeat: its times are already counted
        future = self._submit(request, observation, client)
        self._sessions.record(observation, request_id, future, request.state.tenant)
        self._metrics.sessions.set(len(self._sessions))
        return await asyncio.shield(future)

    def _submit(self, request: Request, observation: Observation, client: str) -> "asyncio.Future[Outcome]":
        try:
            timeout_s = float(request.headers["x-timeout-s"])
        except (KeyError, ValueError):
            timeout_s = DEFAULT_TIMEOUT_S
        if not math.isfinite(timeout_s) or timeout_s <= 0:
            timeout_s = DEFAULT_TIMEOUT_S
        job = self._engine.submit(observation, client, request.state.tenant, timeout_s)
        if job.future.done():
            return job.future

        async def give_up_when_disconnected() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            self._engine.give_up(job)

        watch = asyncio.ensure_future(give_up_when_disconnected())
        job.future.add_done_callback(lambda _: watch.cancel())
        return job.future

    def _forget(self, session: str) -> None:
        forgotten = self._engine.call(lambda: self._engine.policy.reset(session))
        forgotten.add_done_callback(lambda done: done.cancelled() or done.exception())  # else asyncio logs it

    async def _after_response(self, stages_s: Mapping[str, float], batch: int) -> None:
        await asyncio.sleep(0)  # uvloop sends the response at the end of this iteration
        self._engine.after_response()
        if batch:
            self._metrics.batch_size.observe(batch)
        for stage, seconds in stages_s.items():
            self._metrics.stages[stage].observe(seconds)


def _scoped(observation: Observation, tenant: Tenant) -> Observation:
    """Return an observation whose session is the tenant's own: two students may use the same name."""
    session = tenant.scoped(observation.session)
    return observation if session is observation.session else replace(observation, session=session)
