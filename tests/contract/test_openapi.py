"""The description of the JSON routes: complete, behind the token, and true of what a service answers."""

import json

import httpx
import pytest
from fakes import EchoPolicy, picture

from vla_contract.protocol.act_json import to_json
from vla_contract.protocol.problems import KINDS
from vla_contract.server import openapi

TOKEN = "correct-horse-battery"
NOT_JSON = {"/v1/act", "/v1/reset", "/metrics", "/docs"}


@pytest.mark.parametrize("token", [None, TOKEN])
def test_every_json_route_is_described(service, token):
    running = service(EchoPolicy(), token=token)
    headers = {"Authorization": f"Bearer {TOKEN}"} if token else {}
    found = httpx.get(running.url + "/openapi.json", headers=headers).json()
    assert {(m.upper(), r) for r, methods in found["paths"].items() for m in methods} == {
        (method, route) for method, route in running.app.direct if route not in NOT_JSON
    }
    page = httpx.get(running.url + "/docs", headers=headers)
    assert page.headers["content-type"].startswith("text/html") and "//" not in page.text.replace("application/", "")
    assert all(route in page.text for route in found["paths"])
    if token:
        assert found["security"] and found["components"]["securitySchemes"]
        assert {httpx.get(running.url + route).status_code for route in ("/openapi.json", "/docs")} == {401}


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
