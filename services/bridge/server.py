"""A policy of this lab for other projects' clients: a websocket server in front of the contract.

At the path /vla-eval it speaks that project's protocol (`services.bridge.vla_eval.server`), everywhere else openpi's.

A client gets metadata when it connects, and actions for every observation (openpi@15a9616a
packages/openpi-client/src/openpi_client/websocket_client_policy.py). An error is sent as a text frame, which
that client raises. `GET /healthz` is openpi's probe, `/readyz` the lab's.
"""

from __future__ import annotations

import asyncio
import http
import itertools
import logging
import signal
import time
import uuid
from contextlib import suppress
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.protocol import State

from services.bridge.robots import ACTIONS, LIBERO, Robot, read_observation
from services.bridge.vla_eval import server as vla_eval
from services.bridge.vla_eval.robots import LIBERO as VLA_EVAL_LIBERO
from services.bridge.wire import MAX_BYTES, ProtocolError, pack, short, unpack
from vla_contract import ContractError, InvalidObservation, PolicyClient, PolicyInfo
from vla_contract.protocol.problems import MEDIA_TYPE
from vla_contract.server.auth import TokenCheck
from vla_contract.server.hosts import HostCheck
from vla_evaluation.actions import Actions, PolicyFault

log = logging.getLogger("vla_contract")
MAX_CLIENTS = 64
PING_TIMEOUT_S = 600.0  # vla-eval's client answers no ping while its simulator builds a scene or steps
PROBES = ("/healthz", "/readyz", "/health")  # openpi's, the lab's, vla-eval's
OPENPI = ""
BAD_MESSAGE, FAILED = 1007, 1011  # websocket close codes


def check_policy(info: PolicyInfo, robot: Robot) -> None:
    """Raise ValueError if openpi's clients of this robot lack an input of the policy, or its actions do not fit."""
    if info.stateful:
        missing = "the start of each episode, which openpi's protocol does not send"
        raise ValueError(f"policy {info.name!r} needs {missing}; choose another")
    robot.check_policy(info)
    if len(info.unnorm_keys) > 1:
        several = f"policy {info.name!r} has statistics of several data sets ({', '.join(info.unnorm_keys)})"
        raise ValueError(f"{several}; openpi's protocol cannot select one: serve the policy with one")


def metadata(info: PolicyInfo) -> dict[str, Any]:
    """Return the metadata message that a client receives when it connects."""
    fields: dict[str, Any] = {"policy": info.name, "action_horizon": info.horizon, "action_dim": info.action_size}
    if info.image_hw:
        fields["image_resolution"] = list(info.image_hw)
    return {**fields, "checkpoint": info.checkpoint.repo} if info.checkpoint else fields


class BridgeServer:
    """Serves one policy to other projects' clients. `info` is the policy's own.

    Raises ValueError if neither protocol can serve the policy; clients of the unsupported one are rejected.
    """

    def __init__(self, client: PolicyClient, info: PolicyInfo, token: str | None = None):
        self.refusals = {OPENPI: "", vla_eval.PATH: ""}
        for protocol, check in ((OPENPI, lambda: check_policy(info, LIBERO)),
                                (vla_eval.PATH, lambda: VLA_EVAL_LIBERO.check_policy(info))):  # fmt: skip
            try:
                check()
            except ValueError as error:
                self.refusals[protocol] = str(error)
        if all(self.refusals.values()):
            raise ValueError("; ".join(self.refusals.values()))
        self.client, self.info = client, info
        self._token, self._open = TokenCheck(token), 0
        self._hosts = None if token else HostCheck()
        self._actions = Actions(info.name, info.action, LIBERO.action)
        self._names = itertools.count()

    async def admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer probes and reject invalid requests; None accepts the websocket."""
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in request.headers.raw_items()]
        if self._hosts is not None and (refusal := self._hosts.refusal(headers)):
            response = connection.respond(http.HTTPStatus.FORBIDDEN, refusal.json().decode())
            del response.headers["Content-Type"]
            response.headers["Content-Type"] = MEDIA_TYPE
            return response
        if request.path in PROBES:
            try:
                await asyncio.to_thread(self.client.wait_ready, 0.0)
            except ContractError as error:
                return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n")
            return connection.respond(http.HTTPStatus.OK, "OK\n")
        if "Origin" in request.headers:
            return connection.respond(http.HTTPStatus.FORBIDDEN, "requests from browser pages are not allowed\n")
        authorization = request.headers.get("Authorization", "")
        if authorization[:8].lower() == "api-key ":  # openpi's way to send a token
            authorization = f"Bearer {authorization[8:]}"
        if not self._token.allows(authorization.encode("latin-1", "replace")):
            hint = "set the client's api_key to the token that this service was started with (VLALAB_TOKEN)\n"
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, hint)
        if refusal := self.refusals[_protocol(request)]:
            return connection.respond(http.HTTPStatus.NOT_FOUND, f"{refusal}\n")
        if self._open >= MAX_CLIENTS:
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, f"{MAX_CLIENTS} clients are connected\n")
        return None

    async def attend(self, connection: ServerConnection) -> None:
        """Answer one client until it disconnects."""
        self._open += 1
        try:
            if _protocol(connection.request) == OPENPI:
                await self._serve_openpi(connection)
                return
            episodes = vla_eval.ConnectionEpisodes(
                self.client, self.info, VLA_EVAL_LIBERO, client_left=lambda: connection.state is not State.OPEN
            )
            try:
                async for frame in connection:
                    if (answer := await asyncio.to_thread(episodes.answer, frame)) is not None:
                        await connection.send(answer)
            finally:
                await asyncio.to_thread(episodes.end)
        except ConnectionClosed:
            return
        except ProtocolError as error:
            await self._end(connection, str(error), BAD_MESSAGE)
        except Exception:
            log.exception("answering a client failed")
            await self._end(connection, "the bridge failed; its log has the traceback", FAILED)
        finally:
            self._open -= 1

    async def _serve_openpi(self, connection: ServerConnection) -> None:
        """Answer a client that speaks openpi's protocol."""
        session = f"openpi.{next(self._names)}.{uuid.uuid4().hex[:8]}"
        await connection.send(pack(metadata(self.info)))
        for step in itertools.count():
            frame = await connection.recv()
            start = time.perf_counter()
            try:
                answer = await asyncio.to_thread(self._chunk, frame, session, step)
            except (ContractError, PolicyFault) as error:  # of this observation; the next may succeed
                await connection.send(short(str(error), 1000))
                continue
            answer["server_timing"] = {"infer_ms": (time.perf_counter() - start) * 1e3}
            await connection.send(pack(answer))

    def _chunk(self, frame: bytes | str, session: str, step: int) -> dict[str, Any]:
        observation = read_observation(LIBERO, unpack(frame), self.info, session, min(step, 2**31 - 1))
        size = self.info.image_hw
        for camera, image in observation.images.items():
            if size is not None and image.shape[:2] != size:
                raise InvalidObservation(
                    f"the image of {camera} is {image.shape[0]}x{image.shape[1]}; policy {self.info.name!r} takes "
                    f"{size[0]}x{size[1]}: run openpi's client with --args.resize-size {size[0]}"
                )
        chunk = self.client.act(observation)
        actions, fault = self._actions.read(chunk, len(chunk.actions))
        if fault is not None:
            raise fault
        timings = {"infer_ms": chunk.timings_ms.get("infer", 0.0)}
        return {ACTIONS: actions, "policy_timing": timings}

    async def _end(self, connection: ServerConnection, message: str, code: int) -> None:
        with suppress(ConnectionClosed):
            await connection.send(message)
            await connection.close(code, message[:100].encode()[:120].decode(errors="ignore"))


def _protocol(request: Request) -> str:
    """Return the client's protocol: OPENPI, or the path of vla-eval's."""
    return vla_eval.PATH if request.path == vla_eval.PATH else OPENPI


def listen(door: BridgeServer, host: str, port: int) -> serve:
    """Return the server; use it with `async with`."""
    return serve(
        door.attend, host, port, process_request=door.admit, compression=None, max_size=MAX_BYTES, max_queue=2,
        ping_timeout=PING_TIMEOUT_S, server_header=None,
    )  # fmt: skip


async def run(door: BridgeServer, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM. Raises OSError if the address is in use."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with listen(door, host, port) as server:
        log.info("listening on %s for clients of policy %s", address(server), door.info.name)
        await stop.wait()


def address(server: Server) -> str:
    """Return the ws:// address of a listening server."""
    host, port = server.sockets[0].getsockname()[:2]
    return f"ws://[{host}]:{port}" if ":" in host else f"ws://{host}:{port}"
