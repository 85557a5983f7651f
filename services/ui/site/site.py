"""The site: renders the pages in one layout, in the language of the request."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl

import jinja2
from markupsafe import Markup
from starlette.datastructures import URL
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from services.ui.site import texts
from services.ui.site.bodies import read
from services.ui.site.login import SESSION_S, Login
from services.ui.site.problem import PageError, ServiceUnavailable
from services.ui.site.upstream import Upstream
from vla_contract.server.public import page_path

DIRECTORY = Path(__file__).resolve().parents[1]


class Site:
    """Rendering, texts, login and services, for all pages.

    pages: directories of the pages, in the order of the navigation. control_directory: of the control daemon.
    """

    def __init__(
        self, pages: tuple[str, ...], services: Mapping[str, str], token: str | None, control_directory: str = ""
    ):
        self.pages, self.login, self.control_directory = pages, Login(token), control_directory
        self.services = {name: Upstream(name, url, token) for name, url in services.items()}
        self._templates = jinja2.Environment(
            loader=jinja2.FunctionLoader(_template),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters["lines_of_json"] = _lines_of_json

    def render(self, request: Request, template: str, status: int = 200, **values: object) -> Response:
        """Return a rendered page. The template's directory, as in "runs/list.html.j2", is the page's name."""
        return HTMLResponse(self.fragment(request, template, **values), status, {"cache-control": "no-store"})

    def answer_problem(self, request: Request, error: Exception) -> Response:
        """Return the answer for an error: a page for browsers, JSON for programs. 409: damaged data."""
        problem = error if isinstance(error, PageError) else PageError(409, str(error))
        if accepts_html(request) and not request.url.path.startswith("/api/"):
            away = problem.name if isinstance(problem, ServiceUnavailable) and not problem.answers else ""
            return self.render(request, "site/problem.html.j2", status=problem.status, why=problem.reason, away=away)
        return JSONResponse({"detail": problem.reason}, problem.status)

    def login_response(self, request: Request, then: str = "", failed: bool = False) -> Response:
        """Return the login page for browsers, JSON for programs. then: page after the login, default: the request's."""
        if not accepts_html(request) and request.url.path != "/":
            detail = "wrong token" if failed else "not logged in"
            return JSONResponse(
                {"detail": f"{detail}; the password is the lab's token (VLALAB_TOKEN)"}, 400 if failed else 401
            )
        if not then:
            then = f"{request.url.path}?{request.url.query}".rstrip("?") if request.method == "GET" else "/"
        return self.render(request, "site/login.html.j2", status=400 if failed else 401, failed=failed, then=then)

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the start page, the login, and every page's `static/` files."""
        files = [
            Mount(f"/static/{path.parent.name}", CachedFiles(directory=path))
            for path in sorted(DIRECTORY.glob("*/static"))
        ]
        return [
            *files,
            Route("/", lambda request: self.render(request, "overview/overview.html.j2")),
            Route("/login", functools.partial(_log_in, self), methods=["POST"]),
            Route("/logout", functools.partial(_log_out, self), methods=["POST"]),
        ]

    async def close(self) -> None:
        """Close the connections to other services."""
        for service in self.services.values():
            await service.close()

    def fragment(self, request: Request, template: str, **values: object) -> str:
        """Return the HTML of a rendered template."""
        language = texts.language_of(request)
        page = template.split("/")[0]
        context = {
            "t": functools.partial(texts.text, language),
            "language": language,
            "languages": texts.LANGUAGES,
            "other_language": lambda code: _with_language(request.url, code),
            "pages": self.pages,
            "page": page,
            "texts": {**texts.of_page(language, "site"), **texts.of_page(language, page)},
            "logged_in": self.login.is_logged_in(request),
            "code": _code,
            "translate": functools.partial(texts.translate, language, page=page),
            "sentences": texts.translations(language),
            "label": functools.partial(texts.label, language),
            "clock": clock,
            "static": static,
        }
        return self._templates.get_template(template).render({**context, **values})


def accepts_html(request: Request) -> bool:
    """Return whether the client accepts HTML, as browsers do."""
    return "text/html" in request.headers.get("accept", "")


def _lines_of_json(value: Mapping[str, object]) -> str:
    """Return JSON with one line per entry."""
    lines = [f"  {json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in value.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def _template(path: str) -> str:
    """Return a template's source, with the public path before the site's own links (`href="/runs"`)."""
    source = (DIRECTORY / path).read_text(encoding="utf-8")
    return re.sub(r'\b(href|src|action|poster)="/', rf'\1="{page_path("ui")}/', source)


class CachedFiles(StaticFiles):
    """Static files, cached by browsers for a year if the URL has a digest."""

    def file_response(self, full_path, stat_result, scope, status_code=200) -> Response:
        """Return the response with its cache header."""
        answer = super().file_response(full_path, stat_result, scope, status_code)
        answer.headers["cache-control"] = "max-age=31536000, immutable" if scope["query_string"] else "no-cache"
        return answer


def static(path: str) -> str:
    """Return the URL of a page's static file, for example "site/site.css", with a digest."""
    page, _, name = path.partition("/")
    return f"{page_path('ui')}/static/{path}?{_digest(DIRECTORY / page / 'static' / name)}"


@functools.cache
def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def clock(seconds: float | None) -> str:
    """Format a duration as M:SS or H:MM:SS; a dash for None."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _with_language(url: URL, code: str) -> str:
    changed = url.include_query_params(language=code)
    return f"{page_path('ui')}{changed.path}?{changed.query}"


def _code(text: str) -> Markup:
    """Return a text as HTML, with backticks as <code>."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts))


async def _log_in(site: Site, request: Request) -> Response:
    form = dict(parse_qsl((await read(request.receive)).decode("utf-8", "replace")))
    session = site.login.begin(form.get("password", ""))
    if session is None:
        return site.login_response(request, form.get("then", "/"), failed=True)
    is_browser = accepts_html(request)
    answer = RedirectResponse(_local_path(form.get("then", "")), 303) if is_browser else JSONResponse({"success": True})
    answer.set_cookie(site.login.cookie, session, max_age=int(SESSION_S), httponly=True, samesite="strict")
    return answer


async def _log_out(site: Site, request: Request) -> Response:
    site.login.end(request)
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(site.login.cookie)
    return answer


def _local_path(path: str) -> str:
    """Return a path of this site unchanged, and "/" for anything that leads to another site."""
    plain = path.isascii() and path.isprintable() and path.startswith("/") and not set(path) & set("\\")
    return path if plain and not path.startswith("//") else "/"
