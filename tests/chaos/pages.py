"""The pages for people: the web page of a policy, the notebook server, TensorBoard. Who may not, gets nothing."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from urllib.parse import quote

from tests.chaos.attack import SLACK_MB, count_ready, flood_and_measure
from tests.chaos.bodies import HOSTILE, JSON, JSON_TEXTS, Body, cut, flip
from tests.chaos.ledger import Ledger
from tests.chaos.targets import Target
from tests.chaos.wire import Answer

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
        base = "/state?" + draw.choice(("example=", "policies=", "state=")) if draw.random() < 0.5 else "/audit/"
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
    return Body(f"/ask/{draw.choice(('act', 'act', 'state'))}", text, media, "question")


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
    invalid = draw.choice((None, None, "token wrong", "Bearer ", "Bearer " + "x" * 3000, "Basic Og==", "Basic !!",
                           "Basic " + "QQ==" * 900, "\xff\xfe"))  # fmt: skip
    cookie = draw.choice((None, None, "_xsrf=1", "username-127-0-0-1=2|1:0|", "a" * 4000))
    headers = {name: value for name, value in (("Authorization", invalid), ("Cookie", cookie)) if value is not None}
    if draw.random() < 0.2:
        headers |= {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": "x",
                    "Sec-WebSocket-Version": "13"}  # fmt: skip
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


def attack_page(target: Target, seed: int, seconds: float, ledger: Ledger) -> None:
    """Attack one page."""
    secret = target.log.with_name("secret.txt")  # beside the volume
    secret.write_text(SECRET)
    draw_request = stranger if target.guarded else question

    def make(number: int) -> Body:
        return draw_request(random.Random(f"{seed}/{target.name}/{number}"), secret)

    row = f"{target.name}: strange requests: no 5xx, no file, nothing without the token"
    flood_and_measure(target, row, make, partial(fault, target), seconds, SLACK_MB, ledger)
    count_ready(target, "/api" if PUBLIC.get(target.name) == JUPYTER else "/readyz", ledger)
