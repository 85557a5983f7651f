"""Takes secrets out of text that somebody else will read: known values wherever they stand, and what looks like one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "[removed]"
SHORTEST = 4  # characters; a shorter value would take half of the words with it
NAMES = r"[\w-]*(?:token|passw(?:or)?d|passphrase|secret|credentials?|[_-]auth|(?:api|access|private|secret)[_-]?key)"
NAMED = re.compile(NAMES, re.IGNORECASE)
PATTERNS = tuple((re.compile(pattern, re.DOTALL | re.IGNORECASE), kept) for pattern, kept in (
    (r"-----BEGIN ([A-Z ]*)PRIVATE KEY( BLOCK)?-----.*?(?:-----END \1PRIVATE KEY( BLOCK)?-----|\Z)", HIDDEN),
    # A header up to the end of its value: in a log, in JSON, in curl's words.
    (r"((?:proxy-)?authorization|(?:set-)?cookie|x-api-key)(\W{1,8})[^\n\"']+", rf"\1\2{HIDDEN}"),
    (r"\b(bearer|basic)(\s+)[\w.~+/=-]{6,}", rf"\1\2{HIDDEN}"),
    (r"(\w://)[^\s/\"']+@", rf"\1{HIDDEN}@"),  # user and password of an address
    (rf"\b({NAMES})(\\*[\"']?\s*[=:]\s*\\*)(\"[^\"\n]+\"|'[^'\n]+'|[^\s&,;}}\"'\\]+)", rf"\1\2{HIDDEN}"),
    (rf"(--{NAMES}\s+)[^\s-]\S*", rf"\1{HIDDEN}"),
    # Tokens of hubs and forges by how they begin, and JSON web tokens.
    (r"\b(?:hf_|gh[pos]_|github_pat_|glpat-|nvapi-|sk-|xox[abp]-|dckr_pat_|AKIA|AIza|npm_|pypi-|wandb_v1_)[\w-]{12,}",
     HIDDEN),
    (r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*", HIDDEN),
))  # fmt: skip


def values(variables: Mapping[str, str]) -> set[str]:
    """Returns the values of those variables whose names say that they are secret, and passwords within addresses.

    An address spells some characters in its own way: each value is there in both spellings.
    """
    named = {value for name, value in variables.items() if NAMED.fullmatch(name)}
    inside = {part for value in variables.values() for part in re.findall(r"://[^\s/@:]*:([^\s/]+)@", value)}
    spelled = {way(value) for value in named | inside for way in (str, quote_plus, partial(quote, safe=""), unquote)}
    return {value for value in spelled if len(value) >= SHORTEST}


def removed(text: str, known: Iterable[str] = ()) -> str:
    """Returns the text without known secrets and without what looks like one; the longest value goes first."""
    for value in sorted(known, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    for pattern, kept in PATTERNS:
        text = pattern.sub(kept, text)
    return text
