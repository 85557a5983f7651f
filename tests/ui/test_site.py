"""The site around the pages: login, requests from other sites, languages, what a browser may load; in a browser too."""

import ast
import contextlib
import errno
import html
import json
import os
import re
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from serving import nobody, serving
from starlette.requests import HTTPConnection
from starlette.routing import Mount

from services.ui.app import PAGES
from services.ui.site import formats, texts
from services.ui.site.login import Login
from tests import axe

TOKEN = "open-sesame"
UI = Path(texts.__file__).resolve().parents[1]
PERSON = {"Accept": "text/html,*/*"}


@pytest.fixture(scope="module")
def sites():
    """The site over nobody, without a token and with one."""
    from contextlib import ExitStack

    from services.ui.app import create_app
    from services.ui.ask.link import PolicyLink

    with ExitStack() as entered:
        link = PolicyLink(nobody())
        entered.callback(link.close)
        services = {"simulator": nobody()}
        yield {token: entered.enter_context(serving(create_app(link, token, services))) for token in (None, TOKEN)}


@pytest.fixture(scope="module")
def url(sites):
    return sites[None]


@pytest.fixture
def logged_in(sites):
    with httpx.Client(base_url=sites[TOKEN]) as client:
        assert client.post("/login", data={"password": TOKEN}).status_code == 200
        yield client


def test_the_login_leads_back_and_its_cookie_is_for_this_site_alone(sites):
    with httpx.Client(base_url=sites[TOKEN], headers=PERSON) as client:
        shown = client.get("/")
        assert shown.status_code == 401 and 'name="password"' in shown.text and "<nav" in shown.text
        wrong = client.post("/login", data={"password": "a guess", "then": "/"})
        assert wrong.status_code == 400 and 'role="alert"' in wrong.text
        right = client.post("/login", data={"password": TOKEN, "then": "/ask"})
        assert (right.status_code, right.headers["location"]) == (303, "/ask")
        cookie = right.headers["set-cookie"]
        assert "HttpOnly" in cookie and re.search("SameSite=strict", cookie, re.IGNORECASE)
        assert client.get("/").status_code == 200
        client.post("/logout")
        assert client.get("/").status_code == 401


@pytest.mark.parametrize(
    "then", ["//evil.example", "https://evil.example", "/\\evil.example", "", "/a\r\nb: c", "evil"]
)
def test_the_login_leads_nowhere_else(sites, then):
    answer = httpx.post(f"{sites[TOKEN]}/login", data={"password": TOKEN, "then": then}, headers=PERSON)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


def test_a_shared_login_works_once_for_ten_minutes_and_holds_no_token(sites, logged_in, monkeypatch):
    url = sites[TOKEN]
    assert httpx.post(f"{url}/login/share").status_code == 403, "only who has the token shares"
    code, late = (logged_in.post("/login/share").json()["code"] for _ in range(2))
    page = httpx.get(f"{url}/login/{code}", headers=PERSON)
    assert page.status_code == 200 and TOKEN not in page.text + code and "set-cookie" not in page.headers
    with httpx.Client(base_url=url, headers=PERSON) as phone:
        assert phone.post("/login", data={"code": code}).status_code == 303
        assert phone.get("/runs").status_code == 200
    now = time.monotonic()
    monkeypatch.setattr("services.ui.site.login.time.monotonic", lambda: now + 601)
    for used in (code, late, "x"):
        assert httpx.post(f"{url}/login", data={"code": used}, headers=PERSON).status_code == 400
    assert httpx.get(f"{url}/login/x/y").status_code == 404, "nothing else is open"


def test_a_program_sends_the_token_itself(sites):
    for value, status in ((f"Bearer {TOKEN}", 200), ("Bearer a-bad-guess", 401), ("", 401)):
        assert httpx.get(f"{sites[TOKEN]}/", headers={"Authorization": value}).status_code == status


def test_after_a_wrong_token_the_right_one_leads_to_the_page_requested(sites):
    asked = "/runs?policy=oracle&start=20"
    with httpx.Client(base_url=sites[TOKEN], headers=PERSON) as client:
        for page in (client.get(asked), client.post("/login", data={"password": "a guess", "then": asked})):
            assert html.unescape(re.search('name="then" value="(.*?)"', page.text)[1]) == asked
        assert client.post("/login", data={"password": TOKEN, "then": asked}).headers["location"] == asked


def test_a_session_survives_a_restart_and_ends_with_logout_or_token():
    first = Login(TOKEN)
    session = first.begin(TOKEN)

    def asks(login: Login, session: str, cookie: str) -> bool:
        headers = [(b"cookie", f"{cookie}={session}".encode())]
        request = HTTPConnection({"type": "http", "headers": headers})
        return login.is_logged_in(request)

    restarted, other = Login(TOKEN), Login("another-token")
    assert asks(restarted, session, first.cookie)
    assert not asks(other, session, first.cookie) and not asks(other, session, other.cookie)
    later, rest = str(int(session.partition(".")[0]) + 1), session.partition(".")[2]
    for forged in (f"{later}.{rest}", "", ".", "é.é", session[:-1]):
        assert not asks(restarted, forged, first.cookie)
    request = HTTPConnection({"type": "http", "headers": [(b"cookie", f"{first.cookie}={session}".encode())]})
    restarted.end(request)
    assert not asks(restarted, session, first.cookie)


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, True),
        ({"Sec-Fetch-Site": "same-site"}, True),
        ({"Origin": "http://evil.example"}, True),
        ({"Origin": "null"}, True),
        ({"Sec-Fetch-Site": "same-origin"}, False),
        ({}, False),
    ],
)
def test_another_site_changes_nothing(logged_in, url, headers, refused):
    """With a login and without: on loopback there may be no token, and other sites' pages all the same."""
    for path in ("/login", "/ask/act", "/logout"):
        assert (logged_in.post(path, headers=headers).status_code == 403) == refused, path
        assert (httpx.post(url + path, headers=headers).status_code == 403) == refused, path


def test_every_answer_keeps_the_page_in(url):
    for path in ("/", "/nothing", "/static/site/site.css", "/readyz"):
        policy = httpx.get(url + path).headers["content-security-policy"]
        assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "http" not in policy


def test_no_answer_of_any_route_may_be_framed(sites):
    """Those of a login, a refusal and a missing page, too."""
    from services.ui.app import create_app
    from services.ui.ask.link import PolicyLink

    with contextlib.closing(PolicyLink(nobody())) as link:
        routes = [*create_app(link).routes]
    paths = {f"{route.path}/site.css" if isinstance(route, Mount) else route.path for route in routes}
    paths |= {"/nothing", "/ask/nothing"}
    assert {"/", "/runs", "/data", "/services", "/simulator", "/login", "/static/site/site.css"} <= paths
    for token, url in sites.items():
        with httpx.Client(base_url=url) as client:
            for path in sorted(re.sub(r"\{[^{}]*\}", "x", path) for path in paths):
                for method in ("GET", "POST"):
                    with client.stream(method, path) as answer:
                        said = f"{method} {path} with token {token}: {answer.status_code}"
                        assert answer.status_code != 500, said
                        assert "frame-ancestors 'none'" in answer.headers.get("content-security-policy", ""), said
                        assert answer.headers["x-content-type-options"] == "nosniff", said
                        assert "referrer-policy" in answer.headers, said


def test_errors_are_pages_with_a_way_on(url):
    """A path that is none, a run that is none, a method that is wrong, and a service that is dead."""
    missing = httpx.get(f"{url}/nope", headers=PERSON)
    assert missing.status_code == 404 and "There is no page at /nope." in missing.text and 'href="/"' in missing.text
    assert httpx.get(f"{url}/nope").json() == {"detail": "Not Found"}, "a program gets JSON"
    run = httpx.get(f"{url}/runs/nope", headers=PERSON)
    assert run.status_code == 404 and 'class="button" href="/runs"' in run.text
    dead = httpx.get(f"{url}/simulator", headers=PERSON)
    assert (
        dead.status_code == 502 and "./lab up simulator" in dead.text and 'class="button" href="/services"' in dead.text
    )
    assert httpx.get(f"{url}/login", headers=PERSON).status_code == 405
    assert httpx.get(f"{url}/lab").headers["location"] == "/services", "the old address"


@pytest.mark.parametrize(
    ("seconds", "english", "korean"),
    [
        (None, "–", "–"),
        (0.4, "0 s", "0초"),
        (64, "1 min 4 s", "1분 4초"),
        (3600, "1 h", "1시간"),
        (93784, "1 d 2 h", "1일 2시간"),
    ],
)
def test_durations_have_two_units(seconds, english, korean):
    assert (formats.duration(seconds, "en"), formats.duration(seconds, "ko")) == (english, korean)


def test_numbers_have_units_and_dates_a_zone(monkeypatch):
    monkeypatch.setenv("TZ", "KST-9")  # without a database of zones, which images lack
    time.tzset()
    try:
        assert "1970-01-01 09:00 KST" in formats.date(0) and "+0900" in formats.date(0)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [formats.size(count) for count in (0, 1234, 999_999, 2_500_000_000)] == ["0 kB", "1 kB", "1.0 MB", "2.5 GB"]
    assert (formats.percent(None), formats.percent(0.8), formats.points(-0.12)) == ("–", "80.0 %", "-12.0")


@pytest.mark.parametrize("path", ["/static/site/%2e%2e/site.py", "/static/site/", "/static/"])
def test_only_what_lies_in_static_is_handed_out(url, path):
    assert httpx.get(url + path).status_code == 404


# --- words ---------------------------------------------------------------------------------------------------


def test_both_languages_have_the_same_words_and_places():
    english, korean = texts.table("en"), texts.table("ko")
    assert set(english) == set(korean) and len(english) > 10
    for name, text in english.items():
        assert sorted(re.findall(r"\{\w+\}", text)) == sorted(re.findall(r"\{\w+\}", korean[name])), name
        assert text.count("`") == korean[name].count("`"), name


def test_every_word_that_a_template_or_a_script_uses_exists():
    used = {f"{page}.{word}" for page in PAGES for word in ("nav", "about")}
    for path in UI.rglob("*.j2"):
        used |= set(re.findall(r"""\bt\(\s*"([\w.]+)"(?!\s*~)""", path.read_text()))
    for path in UI.glob("*/static/*.js"):
        names = re.findall(r"""\bsay\("(\w+)\"""", path.read_text())
        pages = (path.parent.parent.name, "site")
        used |= {next((f"{p}.{n}" for p in pages if f"{p}.{n}" in texts.table("en")), f"{path}: {n}") for n in names}
    assert used - set(texts.table("en")) == set()


@pytest.mark.parametrize(
    ("page", "sources"),
    [
        (
            "site",
            ("shared/evaluation/vla_evaluation/live/*.py", "services/ui/[drsv]*/*.py",
             "shared/contract/vla_contract/protocol/errors.py"),
        ),
        ("runs", ("shared/evaluation/vla_evaluation/report/*.py",)),
        pytest.param(  # the image has no vlalab
            "services",
            ("vlalab/commands/lifecycle.py", "vlalab/control_daemon.py", "vlalab/doctor/**/*.py", "vlalab/engine/*.py"),
            marks=pytest.mark.outside,
        ),
    ],
)  # fmt: skip
def test_what_services_say_is_reported_in_korean_where_it_is_a_sentence_of_theirs(page, sources):
    paths = [path for source in sources for path in UI.parents[1].glob(source)]
    written = "".join(path.read_text() for path in paths)
    for english, korean in texts.translations("ko", page).items():
        assert all(piece in written for piece in english.split("{}")), f"no service says {english!r} any more"
        values = [str(place) for place in range(english.count("{}"))]
        assert texts.translate("ko", english.format(*values), page) == korean.format(*values) != english
        assert texts.translate("en", english, page) == english
    assert texts.translate("ko", "whatever else") == "whatever else"


DOCTOR = {"ok": (0,), "skip": (0,), "warn": (0, 2), "fail": (0, 2), "from_refusal": (1,), "check": (1,)}
NAMES = {"MTU", "EGL", ".env"}  # the same in every language


def template(node: ast.AST) -> str:
    """Return a literal's text, or an f-string's with 0 for its values; else ""."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@pytest.mark.outside
def test_what_the_doctor_says_is_in_korean():
    said = set()
    for path in UI.parents[1].glob("vlalab/doctor/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DOCTOR:
                said |= {template(node.args[place]) for place in DOCTOR[node.func.id] if place < len(node.args)}
                said |= {template(word.value) for word in node.keywords if word.arg == "hint"}
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("reason", "usage", "free"):
                said.add(template(node.value))
    sentences = {text for text in said if re.search("[A-Za-z]", text) and "default-network-opts" not in text} - NAMES
    assert len(sentences) > 100
    assert {text for text in sentences if texts.translate("ko", text, "services") == text} == set()


def test_the_page_that_asks_still_says_what_is_put_into_korean():
    written = "".join(path.read_text() for path in (UI / "ask").iterdir() if path.suffix in (".py", ".j2")).lower()
    written += os.strerror(errno.ECONNREFUSED).lower()
    for english, korean in texts.translations("ko", "ask").items():
        pieces = [piece.strip(" .;").lower() for piece in english.split("{}")]
        assert [piece for piece in pieces if piece not in written] == [], english
        assert set(re.findall(r"\{\d\}", korean)) <= {f"{{{place}}}" for place in range(english.count("{}"))}, english


def test_the_language_is_the_browsers_until_one_is_chosen(url):
    with httpx.Client(base_url=url) as client:
        assert '<html lang="en">' in client.get("/").text
        assert '<html lang="ko">' in client.get("/", headers={"Accept-Language": "fr, ko-KR;q=0.9"}).text
        assert '<html lang="ko">' in client.get("/?language=ko").text
        assert '<html lang="ko">' in client.get("/").text, "it was chosen"
        assert "물어보기" in client.get("/ask/").text
        client.get("/ask/?language=en")
        assert '<html lang="en">' in client.get("/?language=tlh").text


def test_what_a_user_sends_is_text(sites):
    path = "/<script>alert(1)</script>"
    assert "<script>alert" not in httpx.get(sites[TOKEN] + path, headers=PERSON).text
    assert "<script>alert" not in httpx.get(f"{sites[TOKEN]}/?language=<script>alert(1)", headers=PERSON).text
    assert json.loads(re.search(r'id="texts">(.*?)</script>', httpx.get(sites[None]).text)[1])["log_in"] == "Log in"


# --- in a browser --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [pytest.param(name, marks=axe.NEEDED) for name in ("light", "dark")])
@pytest.mark.parametrize("width", [400, 1280])
def test_login_and_overview_are_for_everyone(sites, open_page, width, scheme):
    shown = open_page(width=width)
    shown.scheme(scheme)
    shown.go(sites[TOKEN])
    shown.until("!!document.querySelector('input[type=password]')")
    assert axe.violations(shown) == []
    shown.js("1")
    assert all("401" in complaint for complaint in shown.complaints), "as it has to be"
    shown.complaints.clear()
    shown.type("input[type=password]", TOKEN)
    shown.press("Enter")
    shown.until("!!document.querySelector('#home #last')")
    shown.click(".vlab-side a[lang=ko]")
    shown.until("document.documentElement.lang == 'ko' && !!document.querySelector('#home #last')")
    for wide in (1920, width):
        shown.resize(wide, 900)
        assert axe.violations(shown) == [] and shown.js("document.documentElement.scrollWidth") <= wide
    shown.click("header.vlab a[href='/ask/']")
    shown.until("!!document.querySelector('#ask') && !!document.querySelector('header.vlab a[aria-current]')")
    assert shown.errors == [] and shown.complaints == []
    assert {urlsplit(each).netloc for each in shown.requests if each.startswith("http")} == {
        urlsplit(sites[TOKEN]).netloc
    }
