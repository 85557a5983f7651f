"""Remove secrets from text that other people will read: known values, and text that looks like a secret.

detect-secrets supplies the token formats of forges, clouds and messengers. RULES cover what it does not know or cannot
replace: names with values, headers, command lines, credential files. Neither looks for high entropy: hashes, digests
and commit ids stay. Every rule takes time linear in the text's length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache, partial
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "[removed]"
SHORTEST = 4  # characters; a shorter value would match ordinary text
# A key's name in capitals is a variable; OpenVLA's unnorm_key names a table.
NAMES = (
    r"(?<![\w-])(?:[\w-]*(?:token|passw(?:or)?d|passphrase|secret|credentials?|[_-](?:auth|pwd|signature)|"
    r"(?:api|access|account|auth|bridge|private|secret|signing)[_-]?key)|(?-i:[A-Z0-9_]+(?<!UNNORM)_(?:KEY|PASS)))"
)
NAMED = re.compile(NAMES, re.IGNORECASE)
SPACED = r"(?<![\w-])[\w-]*(?:[_-]token|passw(?:or)?d|passphrase|(?:api|access|private|secret)[_-]?key)"
START = r"(?:\b|(?<=\\[nrt]))"  # of a word, after an escaped line break too
KEY_BYTES = 16_384  # of a private key at most, as text
RULES = tuple((re.compile(pattern, re.DOTALL | re.IGNORECASE), replacement) for pattern, replacement in (
    (r"-----BEGIN ([A-Z ]*)PRIVATE KEY( BLOCK)?-----.*?(?:-----END \1PRIVATE KEY( BLOCK)?-----|\Z)", HIDDEN),
    # A header up to the end of its value: in a log, in JSON, in curl's words.
    (r"((?:proxy-)?authorization|(?:set-)?cookie|x-api-key)(\W{1,8})[^\n\"']+", rf"\1\2{HIDDEN}"),
    (r"\b(bearer|basic)(\s+)[\w.~+/=-]{6,}", rf"\1\2{HIDDEN}"),
    # User and password before a host: of an address, of a proxy without a scheme (not image:tag@sha256:…).
    (r"(\w://)[^\s/\"']+@", rf"\1{HIDDEN}@"),
    (r"(?<![\w.+%-])[\w.+%-]+:[^\s:/\"']+@(?=[\w-]+(?:\.[\w-]+|:\d{2,5}\b))(?!sha\d+:)",
     f"{HIDDEN}@"),
    (rf"({NAMES})(\\*[\"']?\s*[=:]\s*\\*)(\"[^\"\n]+\"|'[^'\n]+'|[^\s&,;}}\"'\\]+)", rf"\1\2{HIDDEN}"),
    (rf"((?=--){NAMES}[\s\"',]+)[^\s\"'-][^\s\"']*", rf"\1{HIDDEN}"),
    # A name, a space and what has both a digit and a letter, or is long.
    (rf"({SPACED}[ \t]+)(?:(?=\S{{0,200}}?\d)(?=\S{{0,200}}?[a-z])[\w+/=.~!@#$%^&*-]{{6,}}|[\w+/=-]{{20,}})",
     rf"\1{HIDDEN}"),
    # curl -u user:password (not docker run -u 1000:1000), docker login -p, config.json's auth, .netrc, Azure's sig=.
    (r"([\s\"'](?:-[fgikLsSv]{0,6}u[\s\"',]*|--(?:proxy-)?user[\s=\"',]+))(?!\d+:\d+\b|\w+://)[^\s:\"']+:[^\s\"']+",
     rf"\1{HIDDEN}"),
    (r"(\blogin\b[^\n]{0,200}?[\s\"']-p[\s=\"',]*)[^\s\"',]+", rf"\1{HIDDEN}"),
    (r"(\"auth\\*\"\s*:\s*\\*\")[^\"\\]+", rf"\1{HIDDEN}"),
    (r"(\bauth[\"']?\s*[=:]\s*[\"']?)[A-Za-z0-9+/]{12,}={0,2}", rf"\1{HIDDEN}"),
    (r"(\blogin(?:\s|\\n)+[^\s\\]+(?:\s|\\n)+(?:account\s+\S+\s+)?password(?:\s|\\n)+)[^\s\"\\]+", rf"\1{HIDDEN}"),
    (r"((?:^|\n)[ \t]*password[ \t]+)[^\s\"]+(?=[ \t]*(?:\n|\Z))", rf"\1{HIDDEN}"),
    (r"([?&]sig=)[^\s&\"']+", rf"\1{HIDDEN}"),
    # Tokens by how they begin, cut off or not; JSON web tokens.
    (rf"(?-i:{START}(?:(?:hf_|npm_)[A-Za-z0-9]{{12}}|vla_[\w-]{{40}})[\w-]*)", HIDDEN),
    (rf"(?-i:{START}(?:gh[opsur]_|github_pat_|gl(?:pat|dt|ft|soat|rt|rtr|cbt|ptt|imt|agent|oas)-|nvapi-|xox[a-z][.-]"
     r"|xapp-|dckr_pat_|AKIA|ASIA|AIza|ya29\.|AGE-SECRET-KEY-1|pypi-AgE|wandb_v1_|[rs]k_(?:live|test)_)[\w.-]{12,})",
     HIDDEN),
    (rf"(?-i:{START}sk-(?=[\w-]{{0,200}}?\d)[\w-]{{12,}})", HIDDEN),
    (r"(?:(?<![\w-])|(?<=\\[nrt]))eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*", HIDDEN),
    (r"(hooks\.slack\.com/(?:services|workflows|triggers)/)[^\s\"'\\]+", rf"\1{HIDDEN}"),
))  # fmt: skip
# Detectors of detect-secrets that are not used: RULES replace them, they match no secret (an address), or they take
# quadratic time.
LEFT_OUT = (
    "Basic Auth Credentials", "JSON Web Token", "NPM tokens", "OpenAI Token", "Private Key", "Public IP (ipv4)",
    "Cloudant Credentials", "IBM COS HMAC Credentials", "IBM Cloud IAM Key", "SoftLayer Credentials",
)  # fmt: skip


def secret_values(variables: Mapping[str, str]) -> set[str]:
    """Return the values of variables with secret names, and passwords in URLs.

    Each value is returned plain and URL-encoded.
    """
    named = {value for name, value in variables.items() if NAMED.fullmatch(name)}
    inside = {
        part
        for value in variables.values()
        for part in re.findall(r"(?:\A|://)[^\s/@:]*:((?!//)[^\s/]+)@(?!sha\d+:)", value)
    }
    spelled = {
        encode(value) for value in named | inside for encode in (str, quote_plus, partial(quote, safe=""), unquote)
    }
    return {value for value in spelled if len(value) >= SHORTEST}


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the text with known secrets, longest first, and text that looks like a secret replaced."""
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)

    def hide(match: re.Match[str]) -> str:
        """Return a match with its secret replaced: the longest group, else all but surrounding blanks and quotes."""
        longest = max(filter(None, match.groups()), key=len, default="")
        return match[0].replace(longest if len(longest) > 8 else match[0].strip(" \t\r\n=:\"'"), HIDDEN)

    for pattern in _token_formats():
        text = pattern.sub(hide, text)
    # The rest of a private key whose beginning was cut off.
    for end in reversed([*re.finditer(r"-----END [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----", text)]):
        text = text[: max(0, end.start() - KEY_BYTES)] + HIDDEN + text[end.end() :]
    return text


@cache
def _token_formats() -> tuple[re.Pattern[str], ...]:
    """Return detect-secrets' expressions, each extended to the end of the matched token."""
    # Loaded here: it takes longer than the host tool takes to start.
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    from detect_secrets.plugins.base import RegexBasedDetector

    detectors = get_mapping_from_secret_type_to_class()
    return tuple(
        re.compile(rf"(?:{expression.pattern})(?:(?<=\w)[\w.~+/=-]*)?", expression.flags)
        for kind, detector in sorted(detectors.items())
        if issubclass(detector, RegexBasedDetector) and kind not in LEFT_OUT
        for expression in detector.denylist
    )
