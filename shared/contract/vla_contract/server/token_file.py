"""The file of named tokens on the volume, one for each student or program: limits, and the hashes of the tokens.

A token is 256 random bits, so its plain sha256 cannot be reversed. Standard library only: the host tool imports this.
"""

import dataclasses
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from vla_contract.protocol.errors import did_you_mean

FILE = "tokens.json"
ADMIN = "admin"  # the name of $VLALAB_TOKEN in metrics
MAX_TOKENS = 1000  # bounds the series of metrics too
MAX_BYTES = 2**20
CONCURRENCY = 8
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class TokenEntry:
    """One named token: its hash, when it was made (UTC), and its limits.

    rate_per_s   requests per second on average, with bursts of one second; None: no limit
    concurrency  requests in progress at once

    Raises ValueError for an invalid member.
    """

    sha256: str
    created: str
    rate_per_s: float | None = None
    concurrency: int = CONCURRENCY

    def __post_init__(self) -> None:
        if not isinstance(self.sha256, str) or not _SHA256.fullmatch(self.sha256) or not isinstance(self.created, str):
            raise ValueError("sha256 and created must be texts, the first of 64 hexadecimal digits")
        if type(self.concurrency) is not int or not 1 <= self.concurrency <= 1000:
            raise ValueError(f"concurrency is {self.concurrency!r}; expected an integer from 1 to 1000")
        rate = self.rate_per_s
        if rate is not None and not (type(rate) in (int, float) and math.isfinite(rate) and rate > 0):
            raise ValueError(f"rate_per_s is {rate!r}; expected a number of requests per second above 0, or null")


def path_on(volume: Path) -> Path:
    """Return the path of the file on a volume."""
    return volume / FILE


def check_name(name: str) -> str:
    """Return a name that a token may have. Raises ValueError for another one."""
    if not _NAME.fullmatch(name) or name == ADMIN:
        raise ValueError(
            f"invalid token name {name[:80]!r}; expected 1 to 64 letters, digits, '.', '_', '@' and '-', the first a "
            f"letter or digit, and not {ADMIN!r}"
        )
    return name


def load(path: Path) -> dict[str, TokenEntry]:
    """Return the tokens by name, none if the file is missing.

    Raises ValueError for a file that is damaged or that others may read or change, OSError for an unreadable one.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode) or mode & 0o077:
            raise ValueError(f"{path} has mode {mode:o}; expected a file of its owner alone: chmod 600 {path}")
        content = file.read(MAX_BYTES + 1)
    try:
        members = json.loads(content)["tokens"]
        entries = {check_name(name): TokenEntry(**fields) for name, fields in members.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is not a file of tokens ({error}); remove it and add the tokens again") from None
    if len(entries) > MAX_TOKENS:
        raise ValueError(f"{path} has {len(entries)} tokens; expected at most {MAX_TOKENS}: remove some")
    return entries


def add(
    path: Path,
    name: str,
    rate_per_s: float | None = None,
    concurrency: int = CONCURRENCY,
    *,
    replace: bool = False,
) -> str:
    """Store a new token under a name and return it: it cannot be shown again.

    replace: an existing name gets the new token in place of its old one and keeps its limits; without it, that
    is a ValueError, as are an invalid name or limit and one token too many.
    """
    token = f"vla_{secrets.token_urlsafe(32)}"
    digest, created = hashlib.sha256(token.encode()).hexdigest(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entry = TokenEntry(digest, created, rate_per_s, concurrency)
    with _changed(path) as entries:
        if (previous := entries.get(check_name(name))) is not None:
            if not replace:
                raise ValueError(f"{name!r} has a token since {previous.created}; remove it first: token remove {name}")
            entry = dataclasses.replace(previous, sha256=digest, created=created)
        elif len(entries) >= MAX_TOKENS:
            raise ValueError(f"there are {len(entries)} tokens, the limit; remove some first")
        entries[name] = entry
    return token


def remove(path: Path, name: str) -> None:
    """Remove a token. Raises ValueError, with a suggestion, for an unknown name."""
    with _changed(path) as entries:
        if entries.pop(name, None) is None:
            raise ValueError(f"no token {name[:80]!r}{did_you_mean(name, entries)}")


@contextmanager
def _changed(path: Path) -> Iterator[dict[str, TokenEntry]]:
    """Yield the entries, and replace the file by them afterwards: one process at a time, whole or not at all."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path.with_name(f".{path.name}.lock"), flags, 0o600), "rb") as lock:
        _give_to_owner_of(path.parent, lock.fileno())
        fcntl.flock(lock, fcntl.LOCK_EX)
        entries = load(path)
        yield entries
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            with open(os.open(draft, flags | os.O_EXCL, 0o600), "w") as file:
                _give_to_owner_of(path.parent, file.fileno())
                json.dump({"tokens": _members(entries)}, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)


def _members(entries: Mapping[str, TokenEntry]) -> dict[str, dict[str, object]]:
    return {name: asdict(entry) for name, entry in sorted(entries.items())}


def _give_to_owner_of(directory: Path, descriptor: int) -> None:
    """Let root's file belong to the volume's owner, whose services read it."""
    if os.geteuid() == 0:
        owner = os.stat(directory)
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
