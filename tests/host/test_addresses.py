"""What `up` ends with: a notebook's token is for a terminal, and for nobody who reads a file later."""

from dataclasses import dataclass

import pytest

from vlalab.commands import addresses, lifecycle
from vlalab.host.console import LabError

LOG = """2026 INFO notebooks: http://127.0.0.1:8888/lab?token=of-an-earlier-start  (files in /volume/notebooks)
--- restarted
2026 INFO notebooks: http://127.0.0.1:8888/lab?token=s3cret_-now  (files in /volume/notebooks)
2026 INFO another: http://127.0.0.1:9999/lab?token=of-something-else
"""


@dataclass
class Logged:
    """An instance as far as its address goes."""

    log: str
    name: str = "ws_mdl"
    url: str = "http://127.0.0.1:8888"

    @property
    def service(self) -> str:
        return self.name

    def log_tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.splitlines()[-lines:])


def test_on_a_terminal_the_address_opens_the_notebooks():
    assert addresses.line(Logged(LOG), True) == "ws_mdl http://127.0.0.1:8888/lab?token=s3cret_-now"


def test_a_file_gets_no_token(capsys):
    for line in (addresses.line(Logged(LOG), False), addresses.line(Logged(LOG))):
        assert line == "ws_mdl http://127.0.0.1:8888 (the token is in its log: ./lab logs ws_mdl)"


@pytest.mark.parametrize("on_terminal", [True, False])
def test_a_service_that_tells_no_token_has_its_plain_address(on_terminal):
    plain = Logged("2026 INFO notebooks: http://127.0.0.1:8888/lab\nlog in with the value of VLALAB_TOKEN")
    assert addresses.line(plain, on_terminal) == "ws_mdl http://127.0.0.1:8888"
    assert addresses.line(Logged("", name="libero", url=""), on_terminal) == "libero "


def test_with_a_public_address_links_lead_there(monkeypatch):
    monkeypatch.setenv("VLALAB_PUBLIC_URL", "https://lab.example.org/vla/")
    monkeypatch.setenv("VLALAB_TOKEN", "a-good-token")
    assert addresses.line(Logged(LOG), True) == "ws_mdl https://lab.example.org/vla/notebook/ws_mdl"
    assert addresses.page_of(Logged(LOG, name="oracle")) == "http://127.0.0.1:8888", "a policy is no page"


@pytest.mark.parametrize("variables", [{"VLALAB_PUBLIC_URL": "http://lab"}, {"VLALAB_PUBLIC_URL": "https://lab.org"}])
def test_up_refuses_a_bad_public_address_and_one_without_a_token(variables, monkeypatch):
    for name in ("VLALAB_TOKEN", *variables):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LabError, match="VLALAB_PUBLIC_URL"):
        lifecycle.require_startable(["oracle"], {})
