"""A class on the volume: accounts, settings and secrets in one private directory, $VLALAB_CLASS.

Accounts are in accounts.json. A student's home is homes/ID: the id is the lab's own, so neither a renamed account nor a
new student with an old name gets another student's work.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import pwd
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from argon2 import PasswordHasher
from argon2.exceptions import VerificationError

VERSION = 1  # of the directory's layout
FIRST_UID = 2_000_000_000  # above those of distributions, containers and user namespaces
FIRST_UNIX_UID = 1000  # system users are below
MIN_PASSWORD = 8  # characters
NAME = re.compile(r"[a-z][a-z0-9_.-]{0,31}")
HASHER = PasswordHasher()


def directory() -> Path:
    """Return the class's directory."""
    return Path(os.environ["VLALAB_CLASS"])


@dataclass(frozen=True)
class Account:
    """A student. secret: argon2 hash of the one-time code, then of the password; "": another login decides."""

    name: str
    id: str  # names the home, never used again
    uid: int
    secret: str = ""
    is_code: bool = True

    @property
    def home(self) -> Path:
        """The student's own volume."""
        return directory() / "homes" / self.id

    def matches(self, secret: str) -> bool:
        """Return whether this is the code or the password."""
        try:
            return bool(self.secret) and HASHER.verify(self.secret, secret)
        except VerificationError:
            return False


def read(name: str, default: Any = None) -> Any:
    """Return the content of a JSON file of the class."""
    try:
        return json.loads((directory() / name).read_text())
    except FileNotFoundError:
        return {} if default is None else default


def write(name: str, content: Any) -> None:
    """Replace a JSON file of the class, readable by its owner only."""
    path = directory() / name
    new = path.with_name(f".{name}.{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


@contextmanager
def editing(name: str) -> Iterator[dict[str, Any]]:
    """Yield a JSON file's content for changes, and write it; other processes wait meanwhile."""
    with (directory() / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        content = read(name)
        yield content
        write(name, content)


def accounts() -> dict[str, Account]:
    """Return all accounts by name."""
    return {name: Account(name, **entry) for name, entry in sorted(read("accounts.json").get("accounts", {}).items())}


def require(name: str) -> Account:
    """Return an account. Raises ValueError for an unknown name."""
    if account := accounts().get(name):
        return account
    raise ValueError(f"no student {name!r} in this class; ./lab class list shows all")


def save(account: Account) -> None:
    """Add or replace an account."""
    with editing("accounts.json") as content:
        entry = asdict(account)
        content.setdefault("accounts", {})[entry.pop("name")] = entry


def create(name: str, secret: str = "") -> Account:
    """Create an account and return it. It has the uid of the Unix user of that name, else a new one."""
    check_name(name)
    with editing("accounts.json") as content:
        entries = content.setdefault("accounts", {})
        if name in entries:
            raise ValueError(f"student {name!r} exists already")
        try:
            uid = pwd.getpwnam(name).pw_uid
        except KeyError:
            first = FIRST_UID + 1000 * secrets.randbelow(100_000)  # another class on this machine has others
            uid = content["next_uid"] = content.get("next_uid", first) + 1
        entries[name] = {"id": secrets.token_hex(5), "uid": uid, "secret": secret and HASHER.hash(secret)}
        return Account(name, **entries[name])


def new_code() -> str:
    """Return a one-time code of 50 random bits, in letters and digits that are not mistaken for each other."""
    code = "".join(secrets.choice("abcdefghjkmnpqrstuvwxyz23456789") for _ in range(10))
    return f"{code[:5]}-{code[5:]}"


def add(name: str) -> str:
    """Create an account and return its one-time code."""
    code = new_code()
    create(name, code)
    return code


def reset(name: str) -> str:
    """Replace a student's password by a one-time code, which is returned. The work stays."""
    code = new_code()
    save(replace(require(name), secret=HASHER.hash(code), is_code=True))
    return code


def set_password(account: Account, password: str) -> None:
    """Store a student's own password. Raises ValueError for a short one, and for the code itself."""
    if len(password) < MIN_PASSWORD or account.matches(password):
        raise ValueError(f"the new password needs {MIN_PASSWORD} or more characters, and must differ from the old one")
    save(replace(account, secret=HASHER.hash(password), is_code=False))


def remove(name: str) -> Account:
    """Forget an account, not its home; return it."""
    account = require(name)
    with editing("accounts.json") as content:
        del content["accounts"][name]
    return account


def check_name(name: str) -> None:
    """Raise ValueError for a name that cannot be a login, or that is a system user's."""
    if not NAME.fullmatch(name):
        raise ValueError(f"invalid name {name!r}; expected a-z, 0-9, '_', '.', '-', at most 32, first a letter")
    try:
        uid = pwd.getpwnam(name).pw_uid
    except KeyError:
        return
    if uid < FIRST_UNIX_UID:
        raise ValueError(f"{name!r} is a system user of this machine (uid {uid}); choose another name")


def names_in(path: Path) -> list[str]:
    """Return the names of a CSV file: its column `name`, or the first column if no column has that title.

    Raises ValueError for an invalid name, or if there is none.
    """
    rows = [row for row in csv.reader(path.read_text(encoding="utf-8-sig").splitlines()) if row and row[0].strip()]
    titles = [cell.strip().lower() for cell in rows[0]] if rows else []
    column = titles.index("name") if "name" in titles else 0
    names = [row[column].strip().lower() for row in rows["name" in titles :]]
    for name in names:
        check_name(name)
    if not names or len(set(names)) != len(names):
        raise ValueError(f"{path} has {len(names)} names, {len(set(names))} of them different; expected each once")
    return names
