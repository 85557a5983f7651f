"""The page Ask, and the same for programs: a form in, actions as JSON out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
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
from services.ui.site.requests import PageError, read_form
from services.ui.site.site import Site, accepts_html, static
from services.ui.volume import files
from services.ui.volume.files import OpenFile
from vla_contract import PolicyInfo

IMAGE_FIELDS = ("picture", *(f"picture_{number}" for number in range(2, MAX_IMAGES + 1)))  # fields, first camera first
MAX_CONCURRENT = 16  # queries in flight; the policy batches them
MAX_BODY_BYTES = MAX_IMAGES * images.MAX_FILE_BYTES + 2**18
AUDIT = "audit.html"
MAX_TEXT = 4096  # characters of the instruction, and of the state
GRADIO = "Gradio's protocol is no longer supported; send the form to POST /ask/act (docs/ui.md)"


def routes(site: Site, choice: Choice, root: Path) -> list[BaseRoute]:
    """Return the page's routes. root: of the volume, with the pages of audits."""
    slots = asyncio.Semaphore(MAX_CONCURRENT)

    def page(request: Request) -> Response:
        examples = [(_address(path), instruction) for path, instruction in inputs.examples()]
        return site.render(
            request, "ask/ask.html.j2", examples=examples, fields=IMAGE_FIELDS, max_text=MAX_TEXT,
            max_bytes=images.MAX_FILE_BYTES,
        )  # fmt: skip

    def look(request: Request) -> Response:
        parameters = request.query_params
        description = describe_policies(choice, parameters.getlist("policies"), parameters)
        policy = description["policy"]
        for part in ("banner", "identity"):
            policy[part] = site.fragment(request, f"ask/{part}.html.j2", **policy[part])
        return JSONResponse(description)

    async def image(request: Request) -> Response:
        """Answer 204 for an image that browsers display, a PNG for another format, 400 for an unreadable file."""
        try:
            async with slots, read_form(request, images.MAX_FILE_BYTES + 2**18) as form:
                png = await run_in_threadpool(images.drawable, _images(form)[0])
        except images.ImageError as error:
            return error_response(request, 400, query.unusable_image(error))
        except PageError as error:
            return error_response(request, error.status, query.unusable_image(error))
        return Response(png, media_type="image/png") if png else Response(status_code=204)

    async def act(request: Request) -> Response:
        try:
            async with slots, read_form(request, MAX_BODY_BYTES) as form:
                answers = await run_in_threadpool(_ask, choice, form)
        except PageError as error:
            trouble = Trouble("Nothing was sent", error.reason, "Correct this and ask again.")
            return error_response(request, error.status, trouble)
        raw = {name: answer.to_dict() for name, answer in answers.items()}
        (raw,) = raw.values() if len(raw) == 1 else (raw,)
        if accepts_html(request):
            lines = [f"  {json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in raw.items()]
            raw_text = "{\n" + ",\n".join(lines) + "\n}"
            return site.render(request, "ask/answer.html.j2", answers=answers, raw=raw_text)
        status = min(answer.status for answer in answers.values())  # 200 if any of them has answered
        return JSONResponse(raw, status, {"Retry-After": "3"} if status == 503 else None)

    def audited(request: Request) -> Response:
        file = files.open_file(root, "logs", "audit", request.path_params["name"], AUDIT)
        return OpenFile(file, AUDIT, {"content-security-policy": REPORT_POLICY})

    def error_response(request: Request, status: int, trouble: Trouble) -> Response:
        if accepts_html(request):
            return HTMLResponse(site.fragment(request, "ask/banner.html.j2", trouble=trouble), status)
        return JSONResponse(trouble.to_dict(), status)

    def gone(request: Request) -> Response:
        return JSONResponse({"detail": GRADIO}, 410)

    return [
        Route("/ask/", page),
        Route("/ask/look", look),
        Route("/ask/picture", image, methods=["POST"]),
        Route("/ask/act", act, methods=["POST"]),
        Route("/ask/audit/{name}", audited),
        Route("/ask/config", gone),
        Route("/ask/gradio_api/{path:path}", gone, methods=["GET", "POST"]),
    ]


def describe_policies(choice: Choice, names: Sequence[str], form: Any) -> dict[str, Any]:
    """Return the page's description of the named policies and its form values.

    form: current "key" and "state", and "example", the instruction of a newly selected example.
    """
    links = choice.select(names)
    link = next(iter(links.values()))
    status, required = link.status(), Requirements.of(link.status().info for link in links.values())
    info, example = status.info, form.get("example", "")
    keys = list(info.unnorm_keys) if info else []
    key = form.get("key") or None
    suite = inputs.suite_of(example)
    if suite and (info is None or query.fitting_key(suite, keys)):
        key = suite
    is_libero, up = bool(status.usable and query.libero_size(info)), {*choice.up(), *names}
    return {
        "policy": {
            "banner": {"status": status, "trouble": status.trouble, "url": link.url},
            "identity": {"info": info, "details": describe_identity(info) if info else {}},
            "ready": status.usable,
            "name": next(iter(links)),
            "keys": keys if status.usable else [],
            "libero": is_libero,
            "libero_keys": [key for key in keys if is_libero and key.startswith("libero")],
        },
        "policies": [name for name in choice.links if name in up],
        "needs": {
            "pictures": [", ".join(required.first) if required.more else "", *required.offered],
            "state": "; ".join(f"{part.name}: {part.size} × {part.unit}, {part.convention}" for part in required.state),
        },
        "key": query.select_key(key, keys, info.suites) if status.usable else key,
        "state": inputs.format_state(required.state, "" if example else form.get("state", ""), example),
        "example": [_address(inputs.image_of(example, camera)) for camera in required.offered],
    }


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
    filled = query.Form(text("instruction"), text("unnorm_key"), as_libero, text("state"), _images(form), needed)
    return query.ask_all(links, filled)


def _images(form: FormData) -> list[Any]:
    """Return an open file for each of IMAGE_FIELDS; None for one that is empty."""
    fields = (form.get(name) for name in IMAGE_FIELDS)
    return [field.file if isinstance(field, UploadFile) and field.size else None for field in fields]
