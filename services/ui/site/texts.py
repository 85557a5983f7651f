"""The site's texts: one table per language and page, `<page>/texts.<language>.json`."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request

LANGUAGES = {"en": "English", "ko": "한국어"}
COOKIE, QUERY_PARAMETER = "vlalab-language", "language"  # cookie, and query parameter that changes it
YEAR_S = 365 * 86400
DIRECTORY = Path(__file__).resolve().parents[1]


def language_of(request: Request) -> str:
    """Return the language: from the query, else the cookie, else the browser's first supported one, else English."""
    accepted = request.headers.get("accept-language", "").split(",")
    preferred = [code.split(";")[0].strip()[:2].lower() for code in accepted]
    codes = (request.query_params.get(QUERY_PARAMETER), request.cookies.get(COOKIE), *preferred)
    return next((code for code in codes if code in LANGUAGES), "en")


def language_cookie(request: Request) -> bytes | None:
    """Return the Set-Cookie value for a language selected in the query, or None."""
    language = request.query_params.get(QUERY_PARAMETER)
    if language not in LANGUAGES:
        return None
    return f"{COOKIE}={language}; Max-Age={YEAR_S}; Path=/; HttpOnly; SameSite=Strict".encode()


@functools.cache
def table(language: str) -> Mapping[str, str]:
    """Return all texts of a language by "page.name"."""
    texts: dict[str, str] = {}
    for path in sorted(DIRECTORY.glob(f"*/texts.{language}.json")):
        page_texts = json.loads(path.read_text(encoding="utf-8"))
        texts |= {f"{path.parent.name}.{name}": text for name, text in page_texts.items()}
    return texts


def text(language: str, name: str, /, **values: object) -> str:
    """Return the text of a name like "runs.title", with its {fields} filled. KeyError for an unknown name."""
    text = table(language)[name]
    return text.format(**values) if values else text


def label(language: str, kind: str, value: str) -> str:
    """Return the label of a value ("runs.state", "complete"), or the value itself."""
    return table(language).get(f"{kind}_{value.replace(' ', '_')}", value)


def of_page(language: str, page: str) -> dict[str, str]:
    """Return a page's texts by name, for its scripts."""
    return {name[len(page) + 1 :]: text for name, text in table(language).items() if name.startswith(f"{page}.")}


@functools.cache
def translations(language: str, page: str = "site") -> Mapping[str, str]:
    """Return the translations of messages of services and policies: English sentences with {} for values."""
    path = DIRECTORY / page / f"messages.{language}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


@functools.cache
def _patterns(language: str, page: str) -> list[tuple[re.Pattern[str], str]]:
    messages = {**translations(language, page), **translations(language)}
    return [
        (re.compile("(.*?)".join(map(re.escape, english.split("{}"))), re.DOTALL), translation)
        for english, translation in messages.items()
    ]


def translate(language: str, text: str, page: str = "site") -> str:
    """Return a service's message in a language, or unchanged if there is no translation."""
    for pattern, translation in _patterns(language, page):
        if match := pattern.fullmatch(text):
            return translation.format(*(translate(language, value, page) for value in match.groups()))
    return text
