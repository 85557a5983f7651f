"""The site's texts: one table per language and page, `<page>/words.<language>.json`."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request

LANGUAGES = {"en": "English", "ko": "한국어"}
COOKIE, CHOSEN = "vlalab-language", "language"  # a cookie, and what an address that changes it is asked with
YEAR_S = 365 * 86400
DIRECTORY = Path(__file__).resolve().parents[1]


def language_of(request: Request) -> str:
    """Return the language to answer in: the one just chosen, the one chosen before, or the browser's first known."""
    for chosen in (request.query_params.get(CHOSEN), request.cookies.get(COOKIE)):
        if chosen in LANGUAGES:
            return chosen
    wanted = (one.split(";")[0].strip()[:2].lower() for one in request.headers.get("accept-language", "").split(","))
    return next((one for one in wanted if one in LANGUAGES), "en")


def chosen_by(request: Request) -> bytes | None:
    """Return the Set-Cookie value that keeps the language which a request chooses; None where it chooses none."""
    chosen = request.query_params.get(CHOSEN)
    cookie = f"{COOKIE}={chosen}; Max-Age={YEAR_S}; Path=/; HttpOnly; SameSite=Strict"
    return cookie.encode() if chosen in LANGUAGES else None


@functools.cache
def table(language: str) -> Mapping[str, str]:
    """Return all texts of a language by "page.name"."""
    found = {}
    for path in sorted(DIRECTORY.glob(f"*/words.{language}.json")):
        words = json.loads(path.read_text(encoding="utf-8"))
        found |= {f"{path.parent.name}.{name}": text for name, text in words.items()}
    return found


def say(language: str, name: str, /, **values: object) -> str:
    """Return the text of a name like "runs.title", with its {places} filled. KeyError for one that no table has."""
    text = table(language)[name]
    return text.format(**values) if values else text


def named(language: str, kind: str, value: str) -> str:
    """Return the word for a value of some kind ("runs.state", "complete"); the value itself where there is none."""
    return table(language).get(f"{kind}_{value.replace(' ', '_')}", value)


def of_page(language: str, page: str) -> dict[str, str]:
    """Return a page's texts by their names, as its scripts use them."""
    return {name[len(page) + 1 :]: text for name, text in table(language).items() if name.startswith(f"{page}.")}


@functools.cache
def said_table(language: str, page: str = "site") -> Mapping[str, str]:
    """Return what services and policies say, which is English, in a language: by the sentence with {} for values."""
    path = DIRECTORY / page / f"said.{language}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def said(language: str, text: str, page: str = "site") -> str:
    """Return a service's sentence in a language; as it is where the language has none for it."""
    for english, words in {**said_table(language), **said_table(language, page)}.items():
        pattern = "(.+?)".join(map(re.escape, english.split("{}")))
        if found := re.fullmatch(pattern, text, re.DOTALL):
            return words.format(*(said(language, value, page) for value in found.groups()))
    return text
