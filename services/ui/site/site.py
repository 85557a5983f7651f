"""The site: pages by their folders, drawn with one frame, in the language of who asks."""

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

from services.ui.site import words
from services.ui.site.bodies import read
from services.ui.site.login import KEPT_S, Login
from services.ui.site.problem import Away, Problem
from services.ui.site.upstream import Upstream
from vla_contract.server.public import page_path

DIRECTORY = Path(__file__).resolve().parents[1]


class Site:
    """What a page is given: drawing, words, the login, services by name.

    pages: the folders of the pages, in the order of the navigation. steward: the directory in which the machine's
    control daemon answers.
    """

    def __init__(self, pages: tuple[str, ...], services: Mapping[str, str], token: str | None, steward: str = ""):
        self.pages, self.login, self.steward = pages, Login(token), steward
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
        """Return a page: `values` in a template, "runs/list.html.j2" for example, whose folder is the page."""
        return HTMLResponse(self.fragment(request, template, **values), status, {"cache-control": "no-store"})

    def answer_problem(self, request: Request, error: Exception) -> Response:
        """Return why a request was not answered: a page for a person, JSON for a program. 409: what is damaged."""
        problem = error if isinstance(error, Problem) else Problem(409, str(error))
        if accepts_html(request) and not request.url.path.startswith("/api/"):
            away = problem.name if isinstance(problem, Away) and not problem.answers else ""
            return self.render(request, "site/problem.html.j2", status=problem.status, why=problem.why, away=away)
        return JSONResponse({"detail": problem.why}, problem.status)

    def ask_to_log_in(self, request: Request, then: str = "", wrong: bool = False) -> Response:
        """Return the login for a person, a sentence for a program. then: the page asked for, else the request's."""
        if not accepts_html(request) and request.url.path != "/":
            detail = "that is not the lab's token" if wrong else "not logged in"
            return JSONResponse(
                {"detail": f"{detail}; the password is the lab's token (VLALAB_TOKEN)"}, 400 if wrong else 401
            )
        if not then:
            then = f"{request.url.path}?{request.url.query}".rstrip("?") if request.method == "GET" else "/"
        return self.render(request, "site/login.html.j2", status=400 if wrong else 401, wrong=wrong, then=then)

    def routes(self) -> list[BaseRoute]:
        """Return the site's own routes: the overview, the login, and the files of every page's `static/`."""
        files = [
            Mount(f"/static/{path.parent.name}", Kept(directory=path)) for path in sorted(DIRECTORY.glob("*/static"))
        ]
        return [
            *files,
            Route("/", lambda request: self.render(request, "overview/overview.html.j2")),
            Route("/login", functools.partial(_log_in, self), methods=["POST"]),
            Route("/logout", functools.partial(_log_out, self), methods=["POST"]),
        ]

    async def close(self) -> None:
        """Closes the connections to other services."""
        for service in self.services.values():
            await service.close()

    def fragment(self, request: Request, template: str, **values: object) -> str:
        """Return the HTML of a template, for a part of a page."""
        language = words.language_of(request)
        page = template.split("/")[0]
        shown = {
            "t": functools.partial(words.say, language),
            "language": language,
            "languages": words.LANGUAGES,
            "other_language": lambda code: _with_language(request.url, code),
            "pages": self.pages,
            "page": page,
            "texts": {**words.of_page(language, "site"), **words.of_page(language, page)},
            "logged_in": self.login.is_logged_in(request),
            "code": _code,
            "said": functools.partial(words.said, language, page=page),
            "sentences": words.said_table(language),
            "named": functools.partial(words.named, language),
            "clock": clock,
            "static": static,
        }
        return self._templates.get_template(template).render({**shown, **values})


def accepts_html(request: Request) -> bool:
    """Return whether a browser asks, for a page or a part of one; a program gets JSON."""
    return "text/html" in request.headers.get("accept", "")


def _lines_of_json(value: Mapping[str, object]) -> str:
    """Return JSON with a line for each entry."""
    lines = [f"  {json.dumps(name)}: {json.dumps(one, ensure_ascii=False)}" for name, one in value.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def _template(path: str) -> str:
    """Return a template's source, with the links to the site's own paths (`href="/runs"`) below the public path."""
    source = (DIRECTORY / path).read_text(encoding="utf-8")
    return re.sub(r'\b(href|src|action|poster)="/', rf'\1="{page_path("ui")}/', source)


class Kept(StaticFiles):
    """Files that a browser keeps without asking again, where the address tells which state of the file is meant."""

    def file_response(self, full_path, stat_result, scope, status_code=200) -> Response:
        """Return the file's answer."""
        answer = super().file_response(full_path, stat_result, scope, status_code)
        answer.headers["cache-control"] = "max-age=31536000, immutable" if scope["query_string"] else "no-cache"
        return answer


def static(path: str) -> str:
    """Return the address of a page's file, "site/site.css" for example, with a digest of its bytes."""
    page, _, name = path.partition("/")
    return f"{page_path('ui')}/static/{path}?{_digest(DIRECTORY / page / 'static' / name)}"


@functools.cache
def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def clock(seconds: float | None) -> str:
    """Return a time as minutes and seconds, with hours where there are any; a dash for None."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _with_language(url: URL, code: str) -> str:
    changed = url.include_query_params(language=code)
    return f"{page_path('ui')}{changed.path}?{changed.query}"


def _code(text: str) -> Markup:
    """Return a text with what stands between backticks as code."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts))


async def _log_in(site: Site, request: Request) -> Response:
    form = dict(parse_qsl((await read(request.receive)).decode("utf-8", "replace")))
    session = site.login.begin(form.get("password", ""))
    if session is None:
        return site.ask_to_log_in(request, form.get("then", "/"), wrong=True)
    is_browser = accepts_html(request)
    answer = RedirectResponse(_inside(form.get("then", "")), 303) if is_browser else JSONResponse({"success": True})
    answer.set_cookie(site.login.cookie, session, max_age=int(KEPT_S), httponly=True, samesite="strict")
    return answer


async def _log_out(site: Site, request: Request) -> Response:
    site.login.end(request)
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(site.login.cookie)
    return answer


def _inside(path: str) -> str:
    """Return a path of this site as it is, and "/" for whatever would lead a browser elsewhere."""
    plain = path.isascii() and path.isprintable() and path.startswith("/") and not set(path) & set("\\")
    return path if plain and not path.startswith("//") else "/"
