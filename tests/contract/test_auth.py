"""What counts as the token in an Authorization header."""

import base64

import pytest

from vla_contract.server.auth import TokenCheck, bearer

TOKEN = "open-sesame"


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize("given", [f"Bearer {TOKEN}", f"bearer {TOKEN}", basic(f"ann:{TOKEN}"), basic(f":{TOKEN}")])
def test_a_browsers_password_counts_as_the_token(given):
    assert TokenCheck(TOKEN).allows(bearer(given))


@pytest.mark.parametrize(
    "given",
    ["", "Basic", "Basic no base64!", basic(TOKEN), basic(f"{TOKEN}:"), basic(f"ann:{TOKEN}:"), f"Token {TOKEN}", "é"],
)
def test_nothing_else_does(given):
    assert not TokenCheck(TOKEN).allows(bearer(given))
