"""The wire: one observation's round trip on `/v1/act`, on `/act`, and as raw bytes.

All three send the same 256×256×3 image over one kept connection each to the same process, alternately, with the same
no-op policy and the same HTTP client; only what the project itself adds differs:
v1   `PolicyClient.act`: types checked on both sides, msgpack, batching, an action chunk back
act  JSON with the image in base64, as OpenVLA's clients send it; types and batching as above
raw  the image's bytes to a route that reads them and answers 28 bytes: the floor

    ./lab bench wire [--quick]
"""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bench.common import figure, flags, interleaved, served
from vla_contract import ActionChunk, Observation, Part, Policy, PolicyClient, PolicyInfo, create_app
from vla_contract.client.transport import Transport
from vla_contract.memory import keep_freed_memory
from vla_contract.protocol.act_json import loads, to_json

ACTIONS = np.zeros((1, 7), np.float32)
INSTRUCTION = "put the bowl on the stove"


class NoOpPolicy(Policy):
    """Answers with zeros at once."""

    def info(self) -> PolicyInfo:
        return PolicyInfo("no-op", (Part("zeros", 7, "1", "none"),), cameras=("agentview",), max_batch=8)

    def act(self, observations: list[Observation]) -> list[ActionChunk]:
        return [ActionChunk(ACTIONS) for _ in observations]


class WithFloor:
    """The application plus the route /raw, which reads the body and returns as many bytes as one action has.

    GET /received returns the number of bytes of each route's last body.
    """

    def __init__(self, app: ASGIApp):
        self.app = app
        self.received: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        self.received[path] = 0

        async def counted() -> Message:
            message = await receive()
            self.received[path] += len(message.get("body", b""))
            return message

        if path not in ("/raw", "/received"):
            await self.app(scope, counted, send)
            return
        parts, more = [], True
        while more:
            message = await counted()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        answer = b"".join(parts)[:28] if path == "/raw" else json.dumps(self.received).encode()
        headers = [(b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def make_app() -> WithFloor:
    """Return the no-op policy's application with the raw route."""
    return WithFloor(create_app(NoOpPolicy()))


def variants(url: str, image: np.ndarray) -> dict[str, Callable[[], np.ndarray]]:
    """Return the three ways to ask, each with a connection of its own; each returns the action float [7]."""
    client = PolicyClient(url)
    plain = {name: Transport(url) for name in ("act", "raw")}
    step = iter(range(2**31))

    def v1() -> np.ndarray:
        return client.act(Observation({"agentview": image}, None, INSTRUCTION, "bench", next(step))).actions[0]

    def act() -> np.ndarray:
        body = json.dumps({"image": to_json(image), "instruction": INSTRUCTION})
        answer = plain["act"].request("POST", "/act", 30.0, {"Content-Type": "application/json"}, body.encode())
        return loads(answer.body)

    def raw() -> np.ndarray:
        answer = plain["raw"].request("POST", "/raw", 30.0, {}, image.tobytes())
        return np.frombuffer(answer.body, np.float32)

    return {"v1": v1, "act": act, "raw": raw}


def body_bytes(url: str) -> dict[str, int]:
    """Return the number of bytes of each route's last body."""
    return json.loads(Transport(url).request("GET", "/received", 30.0, {}, b"").body)


def main() -> None:
    """Measure, print the table and the FIGURE lines."""
    parser = flags("Round trip of one observation: /v1/act, /act, raw bytes.", "fewer rounds: some seconds")
    rounds = 400 if parser.parse_args().quick else 3000
    keep_freed_memory()  # as an evaluator's workers
    image = np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8)
    with served(make_app) as url:
        seconds = interleaved(variants(url, image), rounds, "one 256x256x3 image there, one action back", warmup=50)
        sent = body_bytes(url)
    print("  bytes sent: " + ", ".join(f"{path} {count:,}" for path, count in sent.items() if count))
    figure("wire_act_over_v1", seconds.ratio("act", "v1"), "ratio", ">=1.8", quick=True)
    figure("wire_v1_over_raw", seconds.ms("v1") - seconds.ms("raw"), "ms", "<=1.0", quick=True)
    figure("wire_v1_round_trip", seconds.ms("v1"), "ms", "none", quick=True)
    figure("wire_act_bytes_over_v1", sent["/act"] / sent["/v1/act"], "ratio", ">=1.3", quick=True)
    figure("wire_v1_bytes_over_picture", sent["/v1/act"] / image.nbytes, "ratio", "<=1.005", quick=True)


if __name__ == "__main__":
    main()
