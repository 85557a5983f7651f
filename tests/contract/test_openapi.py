"""The description of the JSON routes: complete, behind the token, and true of what a service answers."""

import asyncio
import base64
import json
import re
from urllib.parse import urlsplit

import httpx
import pytest
from fakes import EchoPolicy, picture

from tests import browser
from vla_contract import create_app
from vla_contract.protocol.act_json import to_json
from vla_contract.protocol.problems import KINDS

TOKEN = "correct-horse-battery"


@pytest.mark.parametrize("token", [None, TOKEN])
def test_every_route_is_described(service, token):
    running = service(EchoPolicy(), token=token, probes={"/health": {"status": "healthy"}})
    headers = {"Authorization": f"Bearer {TOKEN}"} if token else {}
    document = httpx.get(running.url + "/openapi.json", headers=headers).json()
    operations = {
        (m.upper(), r): operation for r, methods in document["paths"].items() for m, operation in methods.items()
    }
    assert set(operations) == {
        ("POST", "/v1/act"), ("POST", "/v1/reset"), ("POST", "/act"), ("GET", "/v1/info"), ("GET", "/metrics"),
        ("GET", "/livez"), ("GET", "/readyz"), ("GET", "/health"),
    }  # fmt: skip
    for (method, route), operation in operations.items():
        assert ("requestBody" in operation) == (method == "POST")
        is_probe = route in ("/livez", "/readyz", "/health")
        assert ("security" in operation) == (token is not None and not is_probe)
        status = httpx.request(method, running.url + route).status_code
        assert status == (401 if token and not is_probe else 415 if method == "POST" else 200)
        assert str(status) in operation["responses"]
    if token:
        assert {s["scheme"] for s in document["components"]["securitySchemes"].values()} == {"bearer"}
        assert {httpx.get(running.url + route).status_code for route in ("/openapi.json", "/docs")} == {401}
    assert httpx.get(running.url + "/health").json() == {"status": "healthy"}
    assert "/readyz, /health" in httpx.get(running.url + "/nothing", headers=headers).json()["detail"]


def test_the_page_takes_the_token_as_a_browser_sends_it_and_no_other_route_does(service):
    url = service(EchoPolicy(), token=TOKEN).url
    assert httpx.get(url + "/docs").headers["www-authenticate"].startswith("Basic")
    assert httpx.get(url + "/docs", auth=("any", TOKEN)).status_code == 200
    assert httpx.get(url + "/docs", auth=("any", "wrong-password")).status_code == 401
    assert httpx.get(url + "/openapi.json", auth=("any", TOKEN)).status_code == 401


def test_the_page_and_its_files_come_from_the_service_alone(service):
    url = service(EchoPolicy()).url
    page = httpx.get(url + "/docs")
    assert page.headers["content-type"].startswith("text/html")
    files = re.findall(r"""(?:src|href)=["']([^"']+)""", page.text)
    assert len(files) >= 2 and not any(urlsplit(file).netloc for file in files)
    assert {httpx.get(url + file).status_code for file in files} == {200}


def test_a_page_below_a_proxys_path_finds_its_files_there():
    async def ask():
        transport = httpx.ASGITransport(create_app(EchoPolicy(), token=TOKEN), root_path="/vla/echo")
        async with httpx.AsyncClient(transport=transport, base_url="http://lab", auth=("any", TOKEN)) as client:
            page = await client.get("/vla/echo/docs")
            files = re.findall(r"""(?:src|href)=["']([^"']+)""", page.text)
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            document = (await client.get("/vla/echo/openapi.json", headers=bearer, auth=None)).json()
            return page.status_code, files, [(await client.get(file)).status_code for file in files], document

    status, files, statuses, document = asyncio.run(ask())
    assert status == 200 and files and all(file.startswith("/vla/echo/docs/") for file in files)
    assert set(statuses) == {200} and document["servers"] == [{"url": "/vla/echo"}]


@pytest.mark.skipif(browser.find() is None, reason="no Chromium is installed for the page's browser test")
@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_browser_shows_the_routes_without_the_internet(service, token):
    running = service(EchoPolicy(), token=token)
    with browser.Browser() as shown:
        if token:
            sent = base64.b64encode(f"any:{token}".encode()).decode()
            shown.do("Network.setExtraHTTPHeaders", headers={"Authorization": f"Basic {sent}"})
        shown.go(running.url + "/docs")
        shown.until("document.body.innerText.includes('the next action for one image')")
        assert {urlsplit(url).netloc for url in shown.requests} <= {urlsplit(running.url).netloc, ""}


def test_a_route_with_a_body_describes_every_status_there_is(service):
    described = httpx.get(service(EchoPolicy()).url + "/openapi.json").json()["paths"]["/v1/act"]["post"]["responses"]
    of_other_routes = {400, 404, 405}  # 400: of other services
    assert {int(status) for status in described} == {200} | {status for status, _ in KINDS.values()} - of_other_routes


BODIES = {
    "good": {"image": to_json(picture()), "instruction": "go"},
    "encoded": {"encoded": json.dumps({"image": to_json(picture()), "instruction": "go"})},
    "empty": {},
    "a list": [1],
    "no picture": {"image": 3, "instruction": "go"},
}


@pytest.mark.parametrize("name", BODIES)
def test_what_is_answered_is_described(service, name):
    url = service(EchoPolicy()).url
    found = httpx.get(url + "/openapi.json").json()["paths"]["/act"]["post"]["responses"]
    answer = httpx.post(url + "/act", json=BODIES[name])
    described = found[str(answer.status_code)]["content"]
    assert answer.headers["content-type"] in described
    assert (answer.status_code == 200) == (name in ("good", "encoded"))
