"""What `up` ends with: a notebook's token is for a terminal, and for nobody who reads a file later."""

from dataclasses import dataclass

import pytest

from vlalab.commands import addresses

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

    def last_words(self, lines: int = 15) -> str:
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
