"""The page Ask, and the same for programs: a form in, actions as JSON out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from services.ui.ask import images, inputs, query
from services.ui.ask.inputs import Requirements
from services.ui.ask.link import MAX_IMAGES, Choice, Trouble
from services.ui.ask.query import Answer
from services.ui.runs.routes import REPORT_POLICY
from services.ui.services import control_daemon
from services.ui.services.routes import FIRST_STATUS_S
from services.ui.site.requests import PageError, read_form
from services.ui.site.site import Site, accepts_html, static
from services.ui.volume import files
from services.ui.volume.files import OpenFile
from vla_contract import PolicyInfo

IMAGE_FIELDS = ("picture", *(f"picture_{number}" for number in range(2, MAX_IMAGES + 1)))  # fields, first camera first
MAX_CONCURRENT = 16  # queries in flight; the policy batches them
MAX_BODY_BYTES = MAX_IMAGES * images.MAX_FILE_BYTES + 2**18
AUDIT = "audit.html"
LOOKING = {  # before a policy has answered: what `describe` returns without one
    **dict.fromkeys(("name", "trouble", "info", "url", "state", "state_about", "is_libero", "crops"), ""),
    "offered": (), "chosen": (), "details": {}, "unnorm_keys": (), "cameras": [("picture", "", None)],
}  # fmt: skip
MAX_TEXT = 4096  # characters of the instruction, and of the state


def routes(site: Site, choice: Choice, root: Path) -> list[BaseRoute]:
    """Return the page's routes. root: of the volume, with the pages of audits."""
    slots = asyncio.Semaphore(MAX_CONCURRENT)
    examples = [(_address(path), instruction) for path, instruction in inputs.examples()]

    async def draw(request: Request) -> Response:
        """Return the page, without waiting for policies that take long to answer, or the part that follows them.

        The page's script takes the second one; only then can the form be sent.
        """
        is_page = request.url.path == "/ask/"
        form = request.query_params
        looking = asyncio.create_task(asyncio.to_thread(describe, choice, form.getlist("policies"), form))
        await asyncio.wait([looking], timeout=FIRST_STATUS_S if is_page else None)
        return site.render(
            request, "ask/ask.html.j2" if is_page else "ask/state.html.j2", examples=examples, is_page=is_page,
            asked=looking.result() if looking.done() else {**LOOKING, "key": form.get("key", "")},
            max_text=MAX_TEXT, max_bytes=images.MAX_FILE_BYTES, acts=control_daemon.may_act(site, request),
        )  # fmt: skip

    async def act(request: Request) -> Response:
        try:
            async with slots, read_form(request, MAX_BODY_BYTES) as form:
                answers = await run_in_threadpool(_ask, choice, form)
        except PageError as error:
            trouble = Trouble("Nothing was sent", error.reason, "Correct this and ask again.")
            if accepts_html(request):
                return HTMLResponse(site.fragment(request, "ask/banner.html.j2", trouble=trouble), error.status)
            return JSONResponse(trouble.to_dict(), error.status)
        raw: Any = {name: answer.to_dict() for name, answer in answers.items()}
        if accepts_html(request):
            lines = [f"  {json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in raw.items()]
            return site.render(request, "ask/answer.html.j2", answers=answers, raw="{\n" + ",\n".join(lines) + "\n}")
        status = min(answer.status for answer in answers.values())  # 200 if any of them has answered
        headers = {"Retry-After": "3"} if status == 503 else None
        return JSONResponse(raw if len(raw) > 1 else raw.popitem()[1], status, headers)

    def audited(request: Request) -> Response:
        file = files.open_file(root, "logs", "audit", request.path_params["name"], AUDIT)
        return OpenFile(file, AUDIT, {"content-security-policy": REPORT_POLICY})

    return [
        Route("/ask/", draw),
        Route("/ask/state", draw),
        Route("/ask/act", act, methods=["POST"]),
        Route("/ask/audit/{name}", audited),
    ]


def describe(choice: Choice, names: Sequence[str], form: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page shows of the named policies, and its fields with their values.

    form: current "key" and "state", and "example", the instruction of a newly selected example.
    """
    links = choice.select(names)
    name, link = next(iter(links.items()))
    status, needs = link.status(), Requirements.of(link.status().info for link in links.values())
    info, example, up = status.info, form.get("example", ""), {*choice.up(), *names}
    keys = list(info.unnorm_keys) if info and status.usable else []
    suite, key = inputs.suite_of(example), form.get("key") or None
    if suite and (not keys or query.fitting_key(suite, keys)):
        key = suite
    key = query.select_key(key, keys, info.suites) if info and status.usable else key
    is_libero = bool(info and status.usable and query.libero_size(info))
    cameras = (", ".join(needs.first), *needs.offered)
    return {
        "name": name, "url": link.url, "trouble": status.trouble, "info": info, "unnorm_keys": keys, "key": key or "",
        "offered": [name for name in choice.links if name in up], "chosen": list(links),
        "details": describe_identity(info) if info else {}, "is_libero": is_libero,
        "crops": is_libero and (key or "libero").startswith("libero"),
        "cameras": [
            (field, camera, _address(inputs.image_of(example, camera)) if camera else None)
            for n, (field, camera) in enumerate(zip(IMAGE_FIELDS, cameras, strict=True)) if camera or not n
        ],
        "state": inputs.format_state(needs.state, "" if example else form.get("state", ""), example),
        "state_about": "; ".join(f"{part.name}: {part.size} × {part.unit}, {part.convention}" for part in needs.state),
    }  # fmt: skip


def describe_identity(info: PolicyInfo) -> dict[str, str]:
    """Return the policy's identity as displayed; "" for unknown values."""
    size = f"{info.image_hw[1]}×{info.image_hw[0]}" if info.image_hw else "any size"
    checkpoint = info.checkpoint
    return {
        "policy": info.name,
        "checkpoint": checkpoint.repo if checkpoint else "none (no weights)",
        "revision": checkpoint.revision if checkpoint else "",
        "weights sha256": (checkpoint.sha256 or "unknown")[:16] if checkpoint else "",
        "quantization": info.quantization,
        "device": info.device,
        "attention": str(info.details.get("attention", "")),
        "images": f"{', '.join(info.cameras)}; {size}" if info.cameras else "none",
        "chunk": f"up to {info.horizon} actions" if info.horizon > 1 else "1 action",
        "made for": ", ".join(info.suites),
        "lock": (info.lock_hash or "")[:16],
    }


def _address(path: Path | None) -> str | None:
    return static(f"ask/examples/{path.relative_to(inputs.EXAMPLES)}") if path else None


def _ask(choice: Choice, form: FormData) -> dict[str, Answer]:
    def text(name: str) -> str:
        value = form.get(name, "")
        return value[:MAX_TEXT] if isinstance(value, str) else ""

    links = choice.select([name for name in form.getlist("policies") if isinstance(name, str)])
    needed = Requirements.of(link.status().info for link in links.values())
    as_libero = text("as_libero").lower() in ("true", "on", "1")
    fields = (form.get(name) for name in IMAGE_FIELDS)
    pictures = [field.file if isinstance(field, UploadFile) and field.size else None for field in fields]
    filled = query.Form(text("instruction"), text("unnorm_key"), as_libero, text("state"), pictures, needed)
    return query.ask_all(links, filled)
