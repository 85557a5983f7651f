"""Which names a service answers to: without a token, another site's page must not reach it by DNS rebinding."""

import httpx
import pytest
from fakes import EchoPolicy

from tests.running import running
from vla_contract.server import hosts

TOKEN = "open-sesame"


@pytest.fixture(scope="module")
def url():
    """The address of a service without a token."""
    with running(EchoPolicy()) as service:
        yield service.url


def status(url, route="/v1/info", **headers):
    return httpx.get(url + route, headers=headers).status_code


def port(url):
    return url.rpartition(":")[2]


FOREIGN = """
evil.example:{} evil.example localhost.evil.example:{} 127.0.0.1.evil.example localhost@evil.example 0.0.0.0:{}
10.0.0.1:{}
"""


@pytest.mark.parametrize("host", [*FOREIGN.split(), ""])
def test_a_foreign_host_is_refused_on_every_route(url, host):
    host = host.format(port(url))
    with httpx.Client(base_url=url, headers={"Host": host}) as client:
        for route in ("/v1/info", "/livez", "/readyz", "/metrics", "/docs", "/openapi.json", "/nothing"):
            answer = client.get(route)
            problem = answer.json()
            assert answer.status_code == 403 and answer.headers["content-type"] == "application/problem+json"
            assert problem["type"].endswith(":unknown-host") and "VLALAB_ALLOWED_HOSTS" in problem["detail"]
            assert repr(host) in problem["detail"]


@pytest.mark.parametrize("host", ["127.0.0.1:{}", "127.0.0.1", "localhost:{}", "LOCALHOST:{}", "localhost:59999",
                                  "lab.localhost:{}", "127.8.9.10:{}", "[::1]:{}"])  # fmt: skip
def test_loopback_names_at_any_port_are_answered(url, host):
    """A forward by SSH or VS Code arrives as localhost with the port of the other machine."""
    assert status(url, Host=host.format(port(url))) == 200


@pytest.mark.parametrize("method, route", [("GET", "/v1/info"), ("POST", "/act"), ("POST", "/v1/reset")])
@pytest.mark.parametrize("origin", ["http://evil.example", "https://localhost.evil.example:1", "null", "file://"])
def test_another_sites_page_is_refused_by_its_origin(url, method, route, origin):
    answer = httpx.request(method, url + route, headers={"Origin": origin})
    assert answer.status_code == 403 and repr(origin) in answer.json()["detail"]


@pytest.mark.parametrize("origin", ["http://127.0.0.1:{}", "http://localhost:59999", "https://[::1]"])
def test_a_page_of_this_machine_is_answered(url, origin):
    assert status(url, Origin=origin.format(port(url))) == 200


def test_configured_names_are_answered(service, monkeypatch):
    monkeypatch.setenv("VLALAB_ALLOWED_HOSTS", "lab.example.org, Proxy.example.org")
    url = service(EchoPolicy()).url
    assert status(url, Host="lab.example.org:443", Origin="https://proxy.example.org") == 200
    assert status(url, Host="other.example.org") == status(url, Origin="https://example.org") == 403


@pytest.mark.parametrize(("inside", "expected"), [(True, 200), (False, 403)])
def test_names_of_the_compose_network_are_answered_in_a_container_only(service, monkeypatch, inside, expected):
    monkeypatch.setattr(hosts, "in_container", lambda: inside)
    url = service(EchoPolicy()).url
    assert status(url, Host="oracle:8001") == status(url, Host="metaworld_oracle:8021") == expected
    assert status(url, Host="evil.example.org") == status(url, Host="10.0.0.7:8001") == 403


@pytest.mark.parametrize("value", ["http://lab.example.org", "lab.example.org:8000", "*", "two words"])
def test_a_name_that_is_not_a_host_name_is_refused_at_start(service, monkeypatch, value):
    monkeypatch.setenv("VLALAB_ALLOWED_HOSTS", f"localhost,{value}")
    with pytest.raises(ValueError, match="VLALAB_ALLOWED_HOSTS") as caught:
        service(EchoPolicy())
    assert repr(value) in str(caught.value)


def test_with_a_token_any_name_will_do(service):
    """The token keeps other sites' pages out, and machines of the network call a service by many names."""
    url = service(EchoPolicy(), token=TOKEN).url
    assert status(url, Host="gpu01.example.org", Authorization=f"Bearer {TOKEN}") == 200
    assert status(url, Host="gpu01.example.org") == 401 and status(url, "/readyz", Host="gpu01.example.org") == 200
