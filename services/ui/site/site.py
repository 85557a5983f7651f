"""The site: renders the pages in one layout, in the language of the request."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import jinja2
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from services.ui.site import formats, texts
from services.ui.site.login import SESSION_S, Login
from services.ui.site.requests import PageError, ServiceUnavailable, read
from services.ui.site.upstream import Upstream
from vla_contract.server.public import page_path

DIRECTORY = Path(__file__).resolve().parents[1]
NAME = "VLALAB_NAME"  # what the pages call this lab; `./lab up ui` sets the clone's name


class Site:
    """Rendering, texts, login and services, for all pages.

    pages: directories of the pages, in the order of the navigation. control_directory: of the control daemon.
    """

    def __init__(
        self, pages: tuple[str, ...], services: Mapping[str, str], token: str | None, control_directory: str = ""
    ):
        self.pages, self.login, self.control_directory = pages, Login(token), control_directory
        self.services = {name: Upstream(name, url, token) for name, url in services.items()}

        def load(path: str) -> str:
            """Return a template's source, with the public path before the site's own links (`href="/runs"`)."""
            source = (DIRECTORY / path).read_text(encoding="utf-8")
            return re.sub(r'\b(href|src|action|poster)="/', rf'\1="{page_path("ui")}/', source)

        self._templates = jinja2.Environment(
            loader=jinja2.FunctionLoader(load), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
            lstrip_blocks=True,
        )  # fmt: skip
        self._templates.globals |= {
            "languages": texts.LANGUAGES, "pages": pages, "code": formats.code, "static": static,
            "MIN_EPISODES": formats.MIN_EPISODES, "lab_name": os.environ.get(NAME) or "vla-lab",
        }  # fmt: skip
        self._templates.filters |= formats.FILTERS

    def render(self, request: Request, template: str, status: int = 200, **values: object) -> Response:
        """Return a rendered page. The template's directory, as in "runs/list.html.j2", is the page's name."""
        return HTMLResponse(self.fragment(request, template, **values), status, {"cache-control": "no-store"})

    def fragment(self, request: Request, template: str, **values: object) -> str:
        """Return the HTML of a rendered template."""
        language, page = texts.language_of(request), template.split("/")[0]

        def other_language(code: str) -> str:
            changed = request.url.include_query_params(language=code)
            return f"{page_path('ui')}{changed.path}?{changed.query}"

        context = {
            "t": functools.partial(texts.text, language),
            "language": language,
            "other_language": other_language,
            "page": page,
            "texts": {**texts.of_page(language, "site"), **texts.of_page(language, page)},
            "logged_in": self.login.is_logged_in(request),
            "translate": functools.partial(texts.translate, language, page=page),
            "sentences": texts.translations(language),
            "label": functools.partial(texts.label, language),
        }
        return self._templates.get_template(template).render({**context, **values})

    def answer_problem(self, request: Request, error: Exception) -> Response:
        """Return the answer for an error: a page with a way on for browsers, JSON for programs. 409: damaged data."""
        if isinstance(error, HTTPException):  # no route of the site
            error = PageError(error.status_code, error.detail)
        problem = error if isinstance(error, PageError) else PageError(409, str(error))
        if accepts_html(request) and not request.url.path.startswith("/api/"):
            section = request.url.path.split("/")[1]
            return self.render(
                request, "site/problem.html.j2", status=problem.status, code_of=problem.status, why=problem.reason,
                away=problem.name if isinstance(problem, ServiceUnavailable) and not problem.answers else "",
                section=section if section in self.pages and request.url.path.strip("/") != section else "",
                path=request.url.path, page=section,
            )  # fmt: skip
        return JSONResponse({"detail": problem.reason}, problem.status)

    def login_response(self, request: Request, then: str = "", failed: bool = False) -> Response:
        """Return the login page for browsers, JSON for programs. then: page after the login, default: the request's."""
        status = 400 if failed else 401
        if not accepts_html(request) and request.url.path != "/":
            detail = "wrong token" if failed else "not logged in"
            return JSONResponse({"detail": f"{detail}; the password is the lab's token (VLALAB_TOKEN)"}, status)
        if not then:
            then = f"{request.url.path}?{request.url.query}".rstrip("?") if request.method == "GET" else "/"
        return self.render(request, "site/login.html.j2", status=status, failed=failed, then=then)

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the login and every page's `static/` files."""

        async def log_in(request: Request) -> Response:
            form = dict(parse_qsl((await read(request)).decode("utf-8", "replace")))
            code, then = form.get("code", ""), form.get("then", "")
            session = self.login.begin_shared(code) if code else self.login.begin(form.get("password", ""))
            if session is None:
                return self.login_response(request, then or "/", failed=True)
            if not then.isascii() or not then.isprintable() or not re.match(r"/(?!/)[^\\]*$", then):
                then = "/"  # it would lead to another site
            answer = RedirectResponse(then, 303) if accepts_html(request) else JSONResponse({"success": True})
            answer.set_cookie(self.login.cookie, session, max_age=int(SESSION_S), httponly=True, samesite="strict")
            return answer

        async def shared(request: Request) -> Response:
            # A button: programs that look at links must not use the login up.
            return self.render(request, "site/shared.html.j2", code_of=request.path_params["code"])

        async def share(request: Request) -> Response:
            if not self.login.is_logged_in(request):
                raise PageError(403, "not logged in; expected the lab's token (VLALAB_TOKEN)")
            return JSONResponse({"code": self.login.share()})

        async def log_out(request: Request) -> Response:
            self.login.end(request)
            answer = RedirectResponse("/", 303)
            answer.delete_cookie(self.login.cookie)
            return answer

        directories = sorted(DIRECTORY.glob("*/static"))
        return [
            *(Mount(f"/static/{path.parent.name}", CachedFiles(directory=path)) for path in directories),
            Route("/login", log_in, methods=["POST"]),
            Route("/login/share", share, methods=["POST"]),
            Route("/login/{code}", shared),
            Route("/logout", log_out, methods=["POST"]),
        ]


class CachedFiles(StaticFiles):
    """Static files, cached by browsers for a year if the URL has a digest."""

    def file_response(self, full_path, stat_result, scope, status_code=200) -> Response:
        """Return the response with its cache header."""
        answer = super().file_response(full_path, stat_result, scope, status_code)
        answer.headers["cache-control"] = "max-age=31536000, immutable" if scope["query_string"] else "no-cache"
        return answer


def json_routes(answers: Mapping[str, Callable[[Request], Any]]) -> list[BaseRoute]:
    """Return a route by path whose answer is the JSON of a function of the request."""
    return [
        Route(path, lambda request, answer=answer: JSONResponse(answer(request))) for path, answer in answers.items()
    ]


def accepts_html(request: Request) -> bool:
    """Return whether the client accepts HTML, as browsers do."""
    return "text/html" in request.headers.get("accept", "")


@functools.cache
def static(path: str) -> str:
    """Return the URL of a page's static file, for example "site/site.css", with a digest."""
    page, _, name = path.partition("/")
    digest = hashlib.sha256((DIRECTORY / page / "static" / name).read_bytes()).hexdigest()
    return f"{page_path('ui')}/static/{path}?{digest[:12]}"
