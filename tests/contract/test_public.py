"""The public address: what is refused, and how an application stands below it."""

import asyncio

import pytest

from vla_contract.server import public
from vla_contract.server.auth import token_for

URL, TOKEN = "https://lab.example.org/vla", "a-good-token"


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    monkeypatch.setenv("VLALAB_PUBLIC_URL", URL)
    monkeypatch.setenv("VLALAB_TOKEN", TOKEN)


def answer(path, host="lab.example.org", headers=()):
    """Returns the path and scheme that an application sees, and the headers that its answer leaves with."""
    seen, sent = {}, []

    async def app(scope, receive, send):
        seen.update(scope)
        await send({"type": "http.response.start", "status": 200, "headers": list(headers)})

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "scheme": "http", "headers": [(b"host", host.encode())]}
    asyncio.run(public.PublicPath(app, "ui")(scope, None, send))
    return seen["path"], seen["scheme"], [value.decode() for _, value in sent[0]["headers"]]


@pytest.mark.parametrize(
    ("path", "inside"),
    [("/vla/runs", "/runs"), ("/vla/", "/"), ("/vlax", "/vlax"), ("/readyz", "/readyz")],
)
def test_an_application_sees_its_own_paths(path, inside):
    assert answer(path)[:2] == (inside, "https")
    assert answer(path, "127.0.0.1:7860")[:2] == (inside, "http")


def test_the_path_alone_gets_its_slash():
    messages = []

    async def send(message):
        messages.append(message)

    scope = {"type": "http", "path": "/vla", "scheme": "http", "headers": []}
    asyncio.run(public.PublicPath(None, "ui")(scope, None, send))
    assert (messages[0]["status"], dict(messages[0]["headers"])[b"location"]) == (307, b"/vla/")


def test_redirects_and_cookies_get_the_path():
    headers = [
        (b"location", b"/runs?x=1"), (b"location", b"https://lab.example.org/data"), (b"location", b"https://a.b/data"),
        (b"set-cookie", b"a=b; Path=/; HttpOnly"),
    ]  # fmt: skip
    *locations, cookie = answer("/vla/", headers=headers)[2]
    assert locations == ["/vla/runs?x=1", "/vla/data", "https://a.b/data"]
    assert cookie == "a=b; Path=/vla/; HttpOnly; Secure"
    assert answer("/", "127.0.0.1", headers)[2][-1] == "a=b; Path=/vla/; HttpOnly"


def test_without_an_address_all_stays_as_it_is(monkeypatch):
    monkeypatch.delenv("VLALAB_PUBLIC_URL")
    headers = [(b"location", b"/runs"), (b"set-cookie", b"a=b; Path=/")]
    assert answer("/vla/runs", headers=headers) == ("/vla/runs", "http", ["/runs", "a=b; Path=/"])


@pytest.mark.parametrize(
    "value",
    ["lab.example.org", "http://lab.example.org", "https://", "https://lab.example.org/a b", "https://u:p@lab.example.org",
     "https://lab.example.org/vla?x=1", "https://lab.example.org/../vla", "https://lab.example.org//vla"],
)  # fmt: skip
def test_a_bad_address_is_refused_at_start(monkeypatch, value):
    monkeypatch.setenv("VLALAB_PUBLIC_URL", value)
    with pytest.raises(ValueError, match="VLALAB_PUBLIC_URL must be like https://") as caught:
        token_for("127.0.0.1")
    assert repr(value) in str(caught.value)


def test_without_a_token_it_is_refused_at_start(monkeypatch):
    monkeypatch.delenv("VLALAB_TOKEN")
    with pytest.raises(ValueError, match="set VLALAB_TOKEN"):
        token_for("127.0.0.1")


def test_every_service_has_its_path(monkeypatch):
    monkeypatch.setenv("VLALAB_PUBLIC_URL", f"{URL}/")
    assert public.page_url("ui") == URL and public.page_url("libero_notebook") == f"{URL}/notebook/libero"
    assert public.page_url("oracle") == ""
    assert len(set(public.PATHS.values())) == len(public.PATHS)
