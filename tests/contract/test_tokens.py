"""Tokens that no header can carry: named by character and position, and never shown."""

import pytest

from vla_contract import PolicyClient
from vla_contract.protocol.tokens import check_token
from vla_contract.server.auth import TokenCheck

BEFORE, AFTER = "secret-one", "secret-two"
UNUSABLE = {
    "\u200b": "U+200B (ZERO WIDTH SPACE)",
    "\u201c": "U+201C (LEFT DOUBLE QUOTATION MARK)",
    "\u2019": "U+2019 (RIGHT SINGLE QUOTATION MARK)",
    "\xe9": "U+00E9 (LATIN SMALL LETTER E WITH ACUTE)",
    " ": "U+0020 (SPACE)",
    "\n": "U+000A",
    "\udce2": "U+DCE2",
}


@pytest.mark.parametrize("use", [TokenCheck, lambda token: PolicyClient("http://127.0.0.1:9", token)])
@pytest.mark.parametrize("character", UNUSABLE)
def test_a_service_and_a_client_name_the_character_and_not_the_token(character, use):
    with pytest.raises(ValueError, match="VLALAB_TOKEN") as caught:
        use(f"{BEFORE}{character}{AFTER}")
    message = str(caught.value)
    assert UNUSABLE[character] in message and "character 11 of 21" in message and "ASCII" in message
    assert BEFORE not in message and AFTER not in message


def test_a_token_of_printable_ascii_is_taken_as_it_is():
    token = "".join(map(chr, range(ord("!"), ord("~") + 1)))
    assert check_token("a token", token) == token
