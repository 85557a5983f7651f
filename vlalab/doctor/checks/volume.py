"""The shared volume: there, mounted, writable, of the right owner; its checkpoints as their manifests say."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import time
from pathlib import Path

from vlalab.description import manifests
from vlalab.doctor.types import FAIL, Case, Check, Finding, fail, ok, refused, skip
from vlalab.engine import volumes
from vlalab.host import owners
from vlalab.host.console import LabError

RECORD = "checkpoint.json"
HASHED_S = 1.5  # without a name of its environment only what can be hashed in that time is
BLOCK = 8 << 20


def writable(case: Case) -> Finding:
    """Looks whether the caller can write to the volume, or make it."""
    try:
        volumes.require_writable(case.volume)
    except LabError as error:
        return refused(FAIL, error.text)
    return ok(f"{case.volume}" + ("" if case.volume.exists() else ", made by the first use"))


def _places(table: str, column: int) -> list[str]:
    """Returns the folders in a column of fstab's or the kernel's table, in which a space is written as \\040."""
    rows = [line.split() for line in table.splitlines()]
    words = [row[column] for row in rows if len(row) > column and not row[0].startswith("#")]
    return [re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), word) for word in words]


def mounted(case: Case) -> Finding:
    """Compares /etc/fstab with what is mounted: a disk that is not there would be written past."""
    wanted = _places(case.machine.read("/etc/fstab") or "", 1)
    there = _places(case.machine.read("/proc/self/mountinfo") or "", 4)
    above = [place for place in wanted if place != "/" and case.volume.is_relative_to(place)]
    lack = [place for place in above if place not in there]
    if lack:
        return fail(
            f"{lack[0]} is in /etc/fstab and not mounted: the volume would fill the disk below it",
            fix=f"sudo mount {shlex.quote(lack[0])}",
        )
    under = max((one for one in there if case.volume.is_relative_to(one)), key=len, default="/")
    return ok(f"on {under}")


def owner(case: Case) -> Finding:
    """Compares the owner of the volume's folders with who the services run as."""
    if not case.volume.is_dir():
        return skip("the volume is not made yet")
    uid, gid = volumes.owner()
    places = [
        case.volume,
        *sorted(one for one in case.volume.iterdir() if one.is_dir() and not one.name.startswith(".")),
    ]
    foreign = [(one, status) for one in places if (status := one.lstat()).st_uid != uid and not status.st_mode & 0o002]
    if foreign:
        path, status = foreign[0]
        return fail(
            f"{path} is {owners.name_of(status.st_uid)}'s; services run as {owners.name_of(uid)}",
            fix=f"sudo chown {uid}:{gid} {shlex.quote(str(path))}",
            safe=True,
        )
    return ok(f"{owners.name_of(uid)}'s")


def checkpoints(case: Case) -> Finding:
    """Holds each checkpoint against its manifest: sizes always; contents as far as time goes, whole for a named ENV."""
    there = sorted((case.volume / "checkpoints").glob(f"*/{RECORD}"))
    if not there:
        return skip("none has a manifest")
    deadline = time.monotonic() + (HASHED_S if not case.environments else 540.0)
    hashed = count = 0
    for record in there:
        try:
            files = json.loads(record.read_text())["files"]
            if wrong := [name for name, one in files.items() if _size(record.parent / name) != one["size"]]:
                return _damaged(record.parent, f"{wrong[0]} is missing or of another size", wrong[0])
            for name, one in sorted(files.items(), key=lambda item: item[1]["size"]):
                digest, count = _digest(record.parent / name, deadline), count + 1
                hashed += digest is not None
                if digest not in (None, one["sha256"]):
                    return _damaged(record.parent, f"{name} has another sha256", name)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return _damaged(record.parent, f"its {RECORD} cannot be read ({type(error).__name__})")
    return ok(
        f"{len(there)} as their manifests say" + (f"; {hashed} of {count} files hashed" if hashed < count else "")
    )


def _damaged(folder: Path, what: str, file: str = RECORD) -> Finding:
    """Returns how to get a checkpoint again: what is wrong goes, and the same command fills the gap."""
    lost = shlex.quote(str(folder / file))
    return fail(
        f"checkpoint {folder.name} is damaged: {what}",
        hint="remove it and get it again",
        fix=f"rm -f {lost} && {_getter(folder)}",
    )


def _getter(folder: Path) -> str:
    """Returns the command that made a checkpoint."""
    known = manifests.models().items()
    for service, model in known:
        for suite, name in model.checkpoints.items():
            if name == folder.name:
                return f"./lab checkpoint {service} --suite {suite}"
    kind = _field(folder / "config.json", "model_type")
    service = next((name for name, one in known if one.type == kind), "MODEL")
    how = "--tiny" if _field(folder / RECORD, "repo").startswith("random-") else "--suite SUITE"
    return f"./lab checkpoint {service} {how} --name {shlex.quote(folder.name)}"


def _field(path: Path, name: str) -> str:
    try:
        return str(json.loads(path.read_text()).get(name))
    except (OSError, ValueError, AttributeError):
        return ""


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def _digest(path: Path, deadline: float) -> str | None:
    """Returns a file's sha256, None where there is no time for it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            if time.monotonic() > deadline:
                return None
            digest.update(block)
    return digest.hexdigest()


CHECKS = (
    Check("volume", "volume", "Everything that is made lies on it.", FAIL, "VLALAB_VOLUME in .env", writable,
          before=("up", "eval", "record", "train", "finetune", "learn")),
    Check("volume-mounted", "volume's mount", "A disk that is not mounted is written past.", FAIL,
          "sudo mount /PLACE", mounted,
          before=("up", "eval", "record", "train", "finetune", "learn")),
    Check("volume-owner", "volume's owner", "Services cannot write into another's folders.", FAIL,
          "sudo chown UID:GID FOLDER", owner),
    Check("checkpoints", "checkpoints", "A damaged file is a model that answers nonsense.", FAIL,
          "./lab checkpoint MODEL", checkpoints, named_limit_s=600.0),
)  # fmt: skip
