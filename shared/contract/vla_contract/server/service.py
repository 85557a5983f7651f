"""The handlers behind the routes: from a request's bytes to the engine and back."""

import asyncio
import json
import math
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from vla_contract import __version__
from vla_contract.protocol import codec
from vla_contract.protocol.act_json import MEDIA_TYPE as JSON
from vla_contract.protocol.errors import InvalidObservation, did_you_mean
from vla_contract.protocol.info import PolicyInfo
from vla_contract.protocol.messages import decode_observation, decode_reset, encode_chunk
from vla_contract.protocol.parts import in_words
from vla_contract.protocol.problems import Problem
from vla_contract.protocol.types import ActionChunk, Observation
from vla_contract.server.engine import Engine
from vla_contract.server.exchange import Answer, Request
from vla_contract.server.metrics import Metrics
from vla_contract.server.outcomes import Outcome
from vla_contract.server.sessions import SessionTable

DEFAULT_TIMEOUT_S = 60.0  # how long a sender that does not say is thought to wait
DecodeAct = Callable[[bytes, PolicyInfo, str], tuple[Observation, Callable[[ActionChunk], bytes]]]


class Service:
    """One policy's handlers. All run on the event loop; only the engine's thread touches the policy."""

    def __init__(self, engine: Engine, metrics: Metrics, decode_act: DecodeAct):
        self._engine, self._metrics, self._decode_act = engine, metrics, decode_act
        self._sessions = SessionTable(self._forget)

    async def v1_act(self, request: Request) -> Answer:
        """POST /v1/act"""
        start = time.perf_counter()
        info = self._engine.require_ready()
        observation = decode_observation(request.body, info.needs_privileged)
        check_needs(observation, info)
        decode_s = time.perf_counter() - start
        outcome = await self._infer(observation, info, request, client=observation.session)
        start = time.perf_counter()
        spent = {"decode": decode_s, "queue": outcome.queue_s, "infer": outcome.infer_s}

        def timings_ms() -> dict[str, float]:
            spent["encode"] = time.perf_counter() - start
            return {stage: round(seconds * 1e3, 4) for stage, seconds in spent.items()}

        body = encode_chunk(outcome.chunk, timings_ms)
        return Answer(body, codec.MEDIA_TYPE, then=lambda: self._after(spent, outcome.batch))

    async def act(self, request: Request) -> Answer:
        """POST /act"""
        start = time.perf_counter()
        info = self._engine.require_ready()
        observation, encode = self._decode_act(request.body, info, f"act-{request.request_id}")
        check_needs(observation, info)
        decode_s = time.perf_counter() - start
        outcome = await self._infer(observation, info, request, client=_returning(request))
        start = time.perf_counter()
        body = encode(outcome.chunk)
        spent = {"decode": decode_s, "queue": outcome.queue_s, "infer": outcome.infer_s}
        spent["encode"] = time.perf_counter() - start
        return Answer(body, JSON, then=lambda: self._after(spent, outcome.batch))

    async def v1_reset(self, request: Request) -> Answer:
        """POST /v1/reset"""
        self._engine.require_ready()
        name, is_prefix = decode_reset(request.body)
        sessions = self._sessions.beginning(name) if is_prefix else [name]
        for session in sessions:
            self._sessions.drop(session)
            self._engine.queue.forget(session)
        self._metrics.sessions.set(len(self._sessions))
        if sessions:
            await self._engine.call(lambda: [self._engine.policy.reset(session) for session in sessions])
        return Answer(codec.pack({"prefix" if is_prefix else "session": name}), codec.MEDIA_TYPE)

    async def v1_info(self, request: Request) -> Answer:
        """GET /v1/info"""
        return _json({**self._engine.require_ready().to_dict(), "version": __version__})

    async def livez(self, request: Request) -> Answer:
        """GET /livez: the process is up."""
        return _json({"status": "alive"})

    async def readyz(self, request: Request) -> Answer:
        """GET /readyz: weights are loaded, one inference is done, and none hangs."""
        return _json({"status": "ready", "policy": self._engine.require_alive().name})

    async def prometheus(self, request: Request) -> Answer:
        """GET /metrics"""
        return Answer(*self._metrics.page())

    async def _infer(self, observation: Observation, info: PolicyInfo, request: Request, client: str) -> Outcome:
        if not info.stateful:
            return await self._submit(observation, client, request)
        future = self._sessions.answered(observation, request.request_id)
        if future is not None:
            return Outcome((await asyncio.shield(future)).chunk)  # a repeat: what the first one took is counted already
        future = self._submit(observation, client, request)
        self._sessions.asked(observation, request.request_id, future)
        self._metrics.sessions.set(len(self._sessions))
        return await asyncio.shield(future)

    def _submit(self, observation: Observation, client: str, request: Request) -> "asyncio.Future[Outcome]":
        job = self._engine.submit(observation, client, _timeout_s(request))
        if request.connection is not None and not job.future.done():
            request.connection.when_lost = lambda: self._engine.give_up(job)
        return job.future

    def _forget(self, session: str) -> None:
        with suppress(Problem):  # the service stops, and all its sessions with it
            self._engine.call(lambda: self._engine.policy.reset(session)).add_done_callback(asyncio.Future.exception)

    def _after(self, spent_s: dict[str, float], batch: int) -> None:
        self._engine.answered()
        if batch:
            self._metrics.batch_size.observe(batch)
        for stage, seconds in spent_s.items():
            self._metrics.stage(stage, seconds)


def _returning(request: Request) -> str:
    """Returns the sender's name where it keeps its connection, else "": most of /act's clients open one a request."""
    if request.connection is not None and request.connection.requests < 2:
        return ""
    return f"act {request.client}"


def check_needs(observation: Observation, info: PolicyInfo) -> None:
    """Raises InvalidObservation, or Problem with the known keys, where the policy cannot work with this."""
    for camera in info.cameras:
        if camera not in observation.images:
            sent = ", ".join(sorted(observation.images)) or "none"
            raise InvalidObservation(f"no picture of camera {camera!r} (sent: {sent}); policy {info.name!r} needs it")
        size = observation.images[camera].shape[:2]
        if info.image_hw is not None and size != info.image_hw:
            raise InvalidObservation(
                f"images[{camera!r}] is {size[0]}x{size[1]}; policy {info.name!r} takes "
                f"{info.image_hw[0]}x{info.image_hw[1]} (height x width)"
            )
    if info.needs_state:
        _check_state(observation.state, info)
    if info.needs_privileged and observation.privileged is None:
        raise InvalidObservation(f"privileged is missing; policy {info.name!r} works from the simulator's state")
    _check_unnorm_key(observation.unnorm_key, info)


def _check_state(state: np.ndarray | None, info: PolicyInfo) -> None:
    if state is None or len(state) != info.state_size:
        found = "missing" if state is None else f"{len(state)} numbers"
        raise InvalidObservation(
            f"state is {found}; policy {info.name!r} needs {info.state_size} as float32: {in_words(info.state)}"
        )


def _check_unnorm_key(key: str | None, info: PolicyInfo) -> None:
    keys = list(info.unnorm_keys)
    if key is None and len(keys) > 1:
        detail = f"unnorm_key is missing; policy {info.name!r} has several, choose one of {', '.join(keys)}"
        raise Problem("invalid-observation", detail, unnorm_keys=keys)
    if key is not None and key not in keys:
        detail = f"unknown unnorm_key {key!r:.202}{did_you_mean(key, keys)}"
        raise Problem("invalid-observation", detail, unnorm_keys=keys)


def _timeout_s(request: Request) -> float:
    try:
        seconds = float(request.headers[b"x-timeout-s"])
    except (KeyError, ValueError):
        return DEFAULT_TIMEOUT_S
    return seconds if math.isfinite(seconds) and seconds > 0 else DEFAULT_TIMEOUT_S


def _json(value: dict) -> Answer:
    return Answer(json.dumps(value, allow_nan=False).encode(), JSON)
