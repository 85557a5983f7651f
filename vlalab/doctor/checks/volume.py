"""The shared volume: mounted, writable, of the right owner; its checkpoints as their manifests say."""

from __future__ import annotations

import json
import re
import shlex

from vlalab.doctor.check import FAIL, Context, Finding, check, fail, from_refusal, ok, skip
from vlalab.engine import volumes
from vlalab.host import owners, shared_code
from vlalab.host.console import LabError

BEFORE = ("up", "eval", "reproduce", "record", "train", "finetune", "learn")


@check("volume", "volume", FAIL, "VLALAB_VOLUME in .env", before=BEFORE)
def writable(context: Context) -> Finding:
    """Runs, checkpoints, assets and data are stored on it."""
    try:
        volumes.require_writable(context.volume)
    except LabError as error:
        return from_refusal(FAIL, error.text)
    return ok(f"{context.volume}" + ("" if context.volume.exists() else ", created by the first use"))


@check("volume-mounted", "volume's mount", FAIL, "sudo mount /srv/vla-lab", before=BEFORE)
def mounted(context: Context) -> Finding:
    """Files would fill the disk below an unmounted mount point."""

    def column(path: str, number: int) -> list[str]:
        rows = [line.split() for line in (context.machine.read(path) or "").splitlines()]
        values = [row[number] for row in rows if len(row) > number and not row[0].startswith("#")]
        return [re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), word) for word in values]  # \040: a space

    mounts = column("/proc/self/mountinfo", 4)
    for path in column("/etc/fstab", 1):
        if path not in ("/", *mounts) and context.volume.is_relative_to(path):
            reason = f"{path} is in /etc/fstab and not mounted: the volume would fill the disk below it"
            return fail(reason, f"sudo mount {shlex.quote(path)}")
    return ok(f"on {max((path for path in mounts if context.volume.is_relative_to(path)), key=len, default='/')}")


@check("volume-owner", "volume's owner", FAIL, "sudo chown UID:GID DIRECTORY")
def owner(context: Context) -> Finding:
    """Services cannot write to another user's directories."""
    if not context.volume.is_dir():
        return skip("the volume does not exist yet")
    uid, gid = volumes.owner()
    below = sorted(path for path in context.volume.iterdir() if path.is_dir() and not path.name.startswith("."))
    for path in (context.volume, *below):
        status = path.lstat()
        if status.st_uid != uid and not status.st_mode & 0o002:
            reason = f"{path} is {owners.user_name(status.st_uid)}'s; services run as {owners.user_name(uid)}"
            return fail(reason, f"sudo chown {uid}:{gid} {shlex.quote(str(path))}", safe=True)
    return ok(f"{owners.user_name(uid)}'s")


@check("checkpoints", "checkpoints", FAIL, "./lab checkpoint MODEL", named_limit_s=600.0)
def checkpoints(context: Context) -> Finding:
    """A model with a damaged file returns wrong actions."""
    module = shared_code.module("vla_modelkit.checkpoint")
    records = sorted((context.volume / "checkpoints").glob(f"*/{module.RECORD}"))
    if not records:
        return skip("none has a manifest")
    for record in records:
        directory, file = record.parent, ""
        try:
            files = json.loads(record.read_text())["files"]
            if changed := module.changed_files(directory, {"files": files}):
                file, problem = changed[0], f"{changed[0]} is missing or of another size"
            for name, entry in files.items() if context.environments else ():
                if not file and module.file_hash(directory / name) != entry["sha256"]:
                    file, problem = name, f"{name} has another sha256"
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            file, problem = record.name, f"its {record.name} cannot be read ({type(error).__name__})"
        if file:
            hint = "remove it, and run the ./lab checkpoint command that created it again"
            fix = f"rm -f {shlex.quote(str(directory / file))}"
            return fail(f"checkpoint {directory.name} is damaged: {problem}", fix, hint)
    return ok(f"{len(records)} as their manifests say{'' if context.environments else ', by their sizes'}")
