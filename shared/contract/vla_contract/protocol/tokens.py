"""Tokens and keys that travel in an HTTP header.

Only the standard library is needed: the host tool imports this module.
"""

import unicodedata


def check_token(name: str, token: str) -> str:
    """Return a token that a header can carry. Raises ValueError, which does not show it, for another one.

    name: what to call it in the message, for example the variable that holds it.
    """
    for position, character in enumerate(token, 1):
        if not "!" <= character <= "~":
            kind = unicodedata.name(character, "no printable character")
            raise ValueError(
                f"{name} has U+{ord(character):04X} ({kind}) as character {position} of {len(token)}; expected "
                "printable ASCII without spaces. Such characters come with copying: copy it from its source, or type it"
            )
    return token
