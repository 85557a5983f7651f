"""Thirty students on one policy, one of whom floods it: who gets how many answers, and how late.

The model takes 150 ms (--infer-ms) for a batch of at most 16, whatever its size, as a GPU nearly does. Every client has
a token of its own. Two loads take turns:
equal     30 clients, each with one request always waiting
flooded   29 of them, and one with 64 requests at once

    ./lab bench fair [--quick]
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from fastapi import FastAPI

from bench.batching import Model
from bench.common import figure, flags, served
from vla_contract import Observation, create_app
from vla_contract.protocol import codec
from vla_contract.protocol.messages import encode_observation
from vla_contract.server import token_file

STUDENTS, FLOOD = 30, 64
ADMIN = "bench-of-fairness"
IMAGE = np.zeros((256, 256, 3), np.uint8)


def make_app(tokens: str, infer_s: float) -> FastAPI:
    """Return the model's application with a token file."""
    return create_app(Model(infer_s), token=ADMIN, token_file=Path(tokens), queue_size=2 * FLOOD)


class Client:
    """A connection that sends a request after each answer, on the event loop: 93 threads would compete for the GIL."""

    def __init__(self, url: str, token: str, session: str):
        self.host, _, port = url.removeprefix("http://").partition(":")
        self.port, self.session = int(port), session
        self.head = (
            f"POST /v1/act HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: Bearer {token}\r\n"
            f"X-Timeout-S: 3600\r\nContent-Type: {codec.MEDIA_TYPE}\r\nContent-Length: "
        )
        self.latencies_s: list[float] = []

    async def ask(self, start: float, end: float) -> None:
        """Send requests until `end`; record the latency of answers after `start`, both by time.monotonic()."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        step = 0
        while (sent := time.monotonic()) < end:
            body = encode_observation(Observation({"front": IMAGE}, None, "bench", self.session, step))
            writer.write(f"{self.head}{len(body)}\r\n\r\n".encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            if not answer.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"{self.session}: {answer!r}")
            if start <= sent:
                self.latencies_s.append(time.monotonic() - sent)
            step += 1
        writer.close()


def run(url: str, tokens: Mapping[str, str], requests: Sequence[int], seconds: float) -> list[list[float]]:
    """Return each token's latencies (s), with `requests` of each at once, after two seconds to settle."""
    start = time.monotonic() + 2.0
    clients = [
        [Client(url, token, f"{name}-{start}-{index}") for index in range(count)]
        for (name, token), count in zip(tokens.items(), requests, strict=True)
    ]

    async def all_clients() -> None:
        await asyncio.gather(*(client.ask(start, start + seconds) for own in clients for client in own))

    asyncio.run(all_clients())
    return [[latency for client in own for latency in client.latencies_s] for own in clients]


def jain(counts: Sequence[int]) -> float:
    """Return Jain's index of fairness, in [1/n, 1]: 1 where all n counts are equal."""
    return sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts))


def main() -> None:
    """Measure both loads alternately, print a table and the FIGURE lines."""
    parser = flags("Fair shares of one policy for 30 tokens, one of which floods it.", "shorter: half a minute")
    parser.add_argument("--infer-ms", type=float, default=150.0, help="time of a batch; on a busy machine, more")
    options = parser.parse_args()
    infer_s = options.infer_ms / 1e3
    seconds, rounds = (55 * infer_s, 1) if options.quick else (130 * infer_s, 3)
    indices, ratios = [], []
    print(f"{options.infer_ms:.0f} ms an inference of up to 16; load {os.getloadavg()[0]:.1f}\n")
    print(f"{'load':8} {'answers/s':>9} {'least':>6} {'most':>6} {'flooder':>7} {'Jain':>6} {'p95 of others, s':>17}")
    with tempfile.TemporaryDirectory() as directory:
        path = token_file.path_on(Path(directory))
        names = [f"student{number:02}" for number in range(STUDENTS)]
        tokens = {name: token_file.add(path, name, concurrency=FLOOD) for name in names}
        with served(make_app, str(path), infer_s) as url:
            for _ in range(rounds):
                p95_s = {}
                for load, flood in (("equal", 1), ("flooded", FLOOD)):
                    latencies_s = run(url, tokens, [flood, *[1] * (STUDENTS - 1)], seconds)
                    counts = [len(own) for own in latencies_s]
                    p95_s[load] = np.array([np.percentile(own, 95) for own in latencies_s[1:]])
                    print(
                        f"{load:8} {sum(counts) / seconds:9.1f} {min(counts[1:]):6} {max(counts[1:]):6} {counts[0]:7} "
                        f"{jain(counts):6.3f} {p95_s[load].min():8.3f} to {p95_s[load].max():.3f}"
                    )
                indices.append(jain(counts))
                ratios.append(float((p95_s["flooded"] / p95_s["equal"]).max()))
    figure("fair_jain_index", min(indices), "1", ">=0.95", quick=True)
    figure("fair_p95_over_equal", max(ratios), "ratio", "<=2", quick=True)


if __name__ == "__main__":
    main()
