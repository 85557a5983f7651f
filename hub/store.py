"""A class on the volume: accounts, settings and secrets in one private directory, $VLALAB_CLASS.

A student's home is homes/ID: the id is the lab's own, so a new student with an old name gets no other student's work.
"""

import csv
import fcntl
import json
import os
import pwd
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from argon2 import PasswordHasher
from argon2.exceptions import VerificationError

from vlalab.host import state

VERSION = 2  # of the files of a class
FIRST_UID, UIDS = 2_000_000_000, 100_000_000  # above those of distributions, containers and user namespaces
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


def read(name: str) -> dict[str, Any]:
    """Return the content of a JSON file of the class; {} if it does not exist."""
    return dict(json.loads(state.read(directory() / name) or "{}"))


@contextmanager
def editing(name: str) -> Iterator[dict[str, Any]]:
    """Yield a JSON file's content for changes, and replace the file; other processes wait meanwhile."""
    with (directory() / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        content = read(name)
        yield content
        state.write(directory() / name, json.dumps(content, indent=1))


def accounts() -> dict[str, Account]:
    """Return all accounts by name."""
    return {name: Account(name, **entry) for name, entry in sorted(read("accounts.json").get("accounts", {}).items())}


def require(name: str) -> Account:
    """Return an account. Raises ValueError for an unknown name."""
    if account := accounts().get(name):
        return account
    raise ValueError(f"no student {name!r} in this class; ./lab class list shows all")


def create(name: str) -> Account:
    """Create an account without a login, with the uid of the Unix user of that name or a new one. Raises ValueError."""
    check_name(name)
    with editing("accounts.json") as content:
        entries = content.setdefault("accounts", {})
        if name in entries:
            raise ValueError(f"student {name!r} exists already")
        try:
            uid = pwd.getpwnam(name).pw_uid
        except KeyError:
            uid = FIRST_UID + secrets.randbelow(UIDS)  # not used again, nor by another class on this machine
        account = Account(name, secrets.token_hex(5), uid)
        entries[name] = {key: value for key, value in asdict(account).items() if key != "name"}
    return account


def set_secret(name: str, secret: str, is_code: bool) -> None:
    """Replace a student's code or password."""
    with editing("accounts.json") as content:
        content["accounts"][name] |= {"secret": HASHER.hash(secret), "is_code": is_code}


def set_code(name: str) -> str:
    """Replace a student's login by a one-time code of 50 random bits, which is returned. The work stays."""
    letters = "".join(secrets.choice("abcdefghjkmnpqrstuvwxyz23456789") for _ in range(10))  # not 0, o, 1, i, l
    code = f"{letters[:5]}-{letters[5:]}"
    set_secret(name, code, is_code=True)
    return code


def set_password(account: Account, password: str) -> None:
    """Store a student's own password. Raises ValueError for a short one, and for the code itself."""
    if len(password) < MIN_PASSWORD or account.matches(password):
        raise ValueError(f"the new password needs {MIN_PASSWORD} or more characters, and must differ from the old one")
    set_secret(account.name, password, is_code=False)


def remove(name: str) -> None:
    """Forget an account, not its home."""
    with editing("accounts.json") as content:
        del content["accounts"][name]


def check_versions(made_with: Mapping[str, Any]) -> None:
    """Raise ValueError if a newer lab or JupyterHub made this class; otherwise store the versions of this one."""
    import jupyterhub

    current = {"layout": VERSION, "jupyterhub": list(jupyterhub.version_info[:2])}
    for name, version in made_with.items():
        if version > current[name]:
            raise ValueError(f"this class has {name} {version}, this lab knows {current[name]}; update the lab")
    with editing("versions.json") as content:
        content |= current


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
    """Return the column `name` of a CSV file, else the first. Raises ValueError if it is empty or has a name twice."""
    lines = path.read_text(encoding="utf-8-sig").lower().splitlines()
    rows = [row for row in csv.reader(lines, skipinitialspace=True) if any(row)]
    has_title = "name" in (rows or [[]])[0]
    column = rows[0].index("name") if has_title else 0
    names = [row[column].strip() for row in rows[has_title:]]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"{path} has {len(names)} names, {len(set(names))} of them different; expected each once")
    return names
