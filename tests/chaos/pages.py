"""The pages for people: the web page of a policy, the notebook server, TensorBoard. Who may not, gets nothing."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from tests.chaos.attack import AT_ONCE, SLACK_MB, count_memory, describe
from tests.chaos.bodies import HOSTILE, JSON, JSON_TEXTS, Body, cut, flip
from tests.chaos.ledger import Ledger
from tests.chaos.targets import Target, last_traceback, settled_mb
from tests.chaos.wire import Answer, Connection, request_bytes

SECRET = "canary-3f9c1e"  # in a file beside the volume that no page may show
JUPYTER = ("/api", "/login", "/static/", "/favicon.ico", "/logout")
PUBLIC = {  # what answers 2xx without the token; all below it where it ends in a slash
    "ws_mdl": JUPYTER,
    "hf": JUPYTER,
    "tensorboard": ("/livez", "/readyz"),
}


def question(draw: random.Random, secret: Path) -> Body:
    """Return a request to the page that asks a policy: a form of any fields, or a path that leads elsewhere."""
    paths = (str(secret), f"file://{secret}", f"../../../../../..{secret}", "/dev/zero", "/proc/self/environ")
    if draw.random() < 0.35:
        base = draw.choice(("/look?example=", "/look?policies=", "/look?state=", "/examples/", "/static/", "/config?",
                            "/gradio_api/file="))  # fmt: skip
        value = draw.choice((*paths, quote(str(secret), safe=""), "x", "http://127.0.0.1:1/", "a" * 2000))
        return Body(f"/ask{base}{value}", b"", "", "get", draw.choice(("GET", "GET", "HEAD", "POST")))
    token = [*paths, *(json.dumps(value, default=str) for value in HOSTILE if not isinstance(value, bytes))]
    parts = []
    for _ in range(draw.randrange(6)):
        name = draw.choice(("picture", "picture_2", "instruction", "unnorm_key", "as_libero", "policies", "state", "x"))
        file = f'; filename="{draw.choice(token)[:80]}"' if draw.random() < 0.5 else ""
        parts.append(f'--x\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n{draw.choice(token)}\r\n')
    text = ("".join(parts) + "--x--\r\n").encode("utf-8", "replace")
    kind = draw.random()
    if kind < 0.15:
        text = draw.choice(JSON_TEXTS)
    elif kind < 0.35:
        text = draw.choice((cut, flip))(text, draw)
    form = "multipart/form-data; boundary=x"
    media = draw.choice((form, form, form, "multipart/form-data", JSON, "text/plain"))
    return Body(f"/ask/{draw.choice(('act', 'act', 'picture', 'look'))}", text, media, "question")


def stranger(draw: random.Random, secret: Path) -> Body:
    """Return a request to a guarded service without its token, or with a wrong one."""
    paths = ("/api/contents", "/api/kernels", "/api/sessions", "/api/terminals", "/api/kernelspecs", "/tree", "/lab",
    "/files/x", "/nbconvert/html/x",
             "/api/contents/%2e%2e%2f", "/view/x", "/api/status", "/api/me", "/terminals/websocket/1",
             "/api/kernels/x/channels", "/lab/api/settings",
             "/data/runs", "/data/plugins_listing", "/data/environment", "/data/plugin/scalars/tags",
             "/experiment/x/data/runs", "/index.js", "/",
             f"/data/plugin/text/text?run={quote(str(secret))}&tag=a", "//api/contents", "/api/contents/../kernels",
             "/livez/../data/runs")  # fmt: skip
    invalid = draw.choice(
        (
            None,
            None,
            "token wrong",
            "Bearer ",
            "Bearer " + "x" * 3000,
            "Basic Og==",
            "Basic !!",
            "Basic " + "QQ==" * 900,
            "\xff\xfe",
        )
    )
    cookie = draw.choice((None, None, "_xsrf=1", "username-127-0-0-1=2|1:0|", "a" * 4000))
    headers = {name: value for name, value in (("Authorization", invalid), ("Cookie", cookie)) if value is not None}
    if draw.random() < 0.2:
        headers |= {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": "x",
            "Sec-WebSocket-Version": "13",
        }
    text = draw.choice((b"", b"{}", *JSON_TEXTS, json.dumps({"type": "notebook", "path": str(secret)}).encode()))
    query = draw.choice(("", "", "?token=", "?token=wrong", "?_xsrf=1", "?next=//evil"))
    method = draw.choice(("GET", "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))
    return Body(draw.choice(paths) + query, text, JSON, f"stranger {method}", method, headers)


def fault(target: Target, body: Body, answer: Answer) -> str | None:
    """Return what is wrong with an answer, or None."""
    if answer.status == -1:
        return "no answer in time"
    if SECRET.encode() in answer.body:
        return f"a file of this machine was handed out: {answer.body[:120]!r}"
    if answer.status >= 500 and not (answer.status == 503 and "retry-after" in answer.headers):
        return f"{answer.status}: {answer.body[:200]!r}"
    path = body.route.split("?")[0]
    public = any(
        path.startswith(open_) if open_.endswith("/") else path == open_ for open_ in PUBLIC.get(target.name, ())
    )
    if target.guarded and 200 <= answer.status < 300 and not public and body.method != "OPTIONS":
        return f"{answer.status} without the token: {answer.body[:120]!r}"
    return None


async def flood(
    target: Target, make: Callable[[random.Random, Path], Body], seed: int, numbers: Iterator[int], until: float,
    ledger: Ledger, secret: Path,
) -> int:  # fmt: skip
    """Sends made-up requests over some connections at once; returns how many were judged."""
    judged = 0
    row = f"{target.name}: strange requests: no 5xx, no file, nothing without the token"

    async def send_requests() -> None:
        nonlocal judged
        connection = Connection(target.url)
        for number in numbers:
            if time.monotonic() > until:
                break
            body = make(random.Random(f"{seed}/{target.name}/{number}"), secret)
            answer = await connection.ask(request_bytes(body, "127.0.0.1"), body.method == "HEAD", 30.0)
            problem = fault(target, body, answer)
            trace = last_traceback(target) if problem and answer.status >= 500 else ""
            ledger.count(row, problem is None, f"{describe(body, number)} {body.headers}: {problem} {trace}")
            judged += 1
        await connection.close()

    await asyncio.gather(*(send_requests() for _ in range(AT_ONCE)))
    return judged


def attack_page(target: Target, seed: int, seconds: float, ledger: Ledger) -> None:
    """Attack one page; its memory is watched from the second third on."""
    secret = target.log.with_name("secret.txt")  # beside the volume
    secret.write_text(SECRET)
    make, numbers = stranger if target.guarded else question, iter(range(1_000_000))
    warm = asyncio.run(flood(target, make, seed, numbers, time.monotonic() + seconds / 3, ledger, secret))
    before = settled_mb(target)
    judged = asyncio.run(flood(target, make, seed, numbers, time.monotonic() + seconds * 2 / 3, ledger, secret))
    count_memory(target, before, warm + judged, SLACK_MB, ledger)
    ledger.count(f"{target.name}: still ready", asyncio.run(_alive(target)), last_traceback(target))


async def _alive(target: Target) -> bool:
    path = "/api" if PUBLIC.get(target.name) == JUPYTER else "/readyz"
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    return (await Connection(target.url).ask(request, timeout_s=20)).status == 200
