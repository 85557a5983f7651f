"""The description of the JSON routes: complete, behind the token, and true of what a service answers."""

import base64
import json
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from fakes import EchoPolicy, picture
from PIL import Image

from tests import browser
from vla_contract import Part
from vla_contract.protocol.act_json import to_json
from vla_contract.protocol.problems import KINDS
from vla_contract.server import openapi

TOKEN = "correct-horse-battery"
NOT_JSON = {"/v1/act", "/v1/reset", "/metrics", "/docs"}


@pytest.mark.parametrize("token", [None, TOKEN])
def test_every_json_route_is_described(service, token):
    running = service(EchoPolicy(), token=token, probes={"/health": {"status": "healthy"}})
    headers = {"Authorization": f"Bearer {TOKEN}"} if token else {}
    found = httpx.get(running.url + "/openapi.json", headers=headers).json()
    assert {(m.upper(), r) for r, methods in found["paths"].items() for m in methods} == {
        (method, route) for method, route in running.app.direct if route not in NOT_JSON
    }
    page = httpx.get(running.url + "/docs", headers=headers)
    assert page.headers["content-type"].startswith("text/html") and "//" not in page.text.replace("application/", "")
    assert ('id="token"' in page.text) == bool(token)
    assert all(route in page.text for route in found["paths"])
    if token:
        assert found["security"] and found["components"]["securitySchemes"]
        assert {httpx.get(running.url + route).status_code for route in ("/openapi.json", "/docs")} == {401}
    assert httpx.get(running.url + "/health").json() == {"status": "healthy"}
    assert "/readyz, /health" in httpx.get(running.url + "/nothing", headers=headers).json()["detail"]


def test_the_page_takes_the_token_as_a_browser_sends_it_and_no_other_route_does(service):
    url = service(EchoPolicy(), token=TOKEN).url
    assert httpx.get(url + "/docs").headers["www-authenticate"].startswith("Basic")
    assert httpx.get(url + "/docs", auth=("any", TOKEN)).status_code == 200
    assert httpx.get(url + "/docs", auth=("any", "wrong-password")).status_code == 401
    assert httpx.get(url + "/openapi.json", auth=("any", TOKEN)).status_code == 401


def test_there_is_no_form_where_act_takes_something_else(service):
    assert "<form" not in httpx.get(service(EchoPolicy(), act_schemas=({}, {})).url + "/docs").text


@pytest.mark.skipif(browser.find() is None, reason="no Chromium is installed for the page's browser test")
@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_person_tries_act_in_the_browser(service, tmp_path, token):
    """The pixels arrive as they are, in the policy's size; the answer says what its numbers are."""
    policy = EchoPolicy(image_hw=(16, 24), unnorm_keys=("a", "b"), action=(Part("wheels", 2, "rad/s", "left, right"),))
    running = service(policy, token=token)
    Image.fromarray(picture()).save(tmp_path / "seen.png")
    with browser.Browser() as shown:
        if token:
            sent = base64.b64encode(f"any:{token}".encode()).decode()
            shown.do("Network.setExtraHTTPHeaders", headers={"Authorization": f"Basic {sent}"})
        shown.go(running.url + "/docs")
        shown.until("!!document.querySelector('#try')")
        if token:
            shown.do("Network.setExtraHTTPHeaders", headers={})
            shown.type("#token", token)
        shown.upload("#picture", tmp_path / "seen.png")
        shown.type("#instruction", "pick up the bowl")
        shown.click("button")
        shown.until("document.querySelector('#answer').innerText.includes('unnorm_key is missing')")
        shown.type("#key", "b")
        shown.click("button")
        shown.until("document.querySelector('#answer').innerText == 'wheels: 0, 0  (rad/s, left, right)'")
        assert {urlsplit(url).netloc for url in shown.requests} <= {urlsplit(running.url).netloc, ""}
    assert np.array_equal(policy.batches[-1][0].images["agentview"], picture())
    assert policy.batches[-1][0].instruction == "pick up the bowl"


def test_a_route_with_a_body_names_every_status_there_is():
    described = openapi.document(False)["paths"]["/act"]["post"]["responses"]
    of_other_routes = {404, 405, 409}  # /act refuses stateful policies
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
