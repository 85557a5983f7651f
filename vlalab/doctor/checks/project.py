"""The clone and what it made: locks, environments, images, settings, and the ports of its services."""

from __future__ import annotations

import os
import re
import shlex
import stat
from pathlib import Path

from vlalab.description import compose, environment_file, ports
from vlalab.description.interpolation import read_dotenv
from vlalab.doctor.checks.docker import NONE, about
from vlalab.doctor.types import FAIL, WARN, Case, Check, Finding, fail, ok, refused, skip, warn
from vlalab.engine import images
from vlalab.environments import locks, venvs
from vlalab.host import owners, paths, processes, state
from vlalab.host.console import LabError

SECRETS = re.compile(r"(?m)^\s*(?:export\s+)?\w*(?:TOKEN|PASSWORD|SECRET|INDEX|KEY)\w*\s*=\s*\S")


def lock_files(case: Case) -> Finding:
    """Holds every lock against the requirements it was made from."""
    known = locks.all_locks(case.root)
    asked = [one for name, one in known.items() if name in case.environments or not case.environments]
    found = [(one.name, text) for one in asked for text in locks.problems(one)]
    if found:
        return fail(found[0][1].partition("; ")[0], fix=f"./lab lock {found[0][0]}")
    return ok(f"{len(asked)} locks fit their requirements")


def environments(case: Case) -> Finding:
    """Looks whether each environment that was made is of its lock, and whether its Python runs."""
    made, wrong = [], []
    for name in case.known():
        env = venvs.named(name, case.root)
        if not os.path.lexists(env.python):
            continue
        made.append(name)
        if (
            not os.access(env.python, os.X_OK)
            or (case.machine.run(str(env.python), "-I", "-c", "pass") or NOT_RUN).code
        ):
            wrong.append((fail, f"the Python of environment {name} does not run", name))
        elif not env.is_ready():
            wrong.append((warn, f"environment {name} is of another lock", name))
    if wrong:
        verdict, why, name = min(wrong, key=lambda one: one[0] is warn)
        return verdict(why, fix=f"./lab env {name}")
    return ok(", ".join(made)) if made else skip("none is made yet: the first use makes it")


class _NotRun:
    code = 127


NOT_RUN = _NotRun()


def built_images(case: Case) -> Finding:
    """Holds each image against the lock that the repository has now."""
    if not about(case):
        return skip(NONE)
    there = images.found(list(case.known()))
    if not there:
        return skip("none is built", fix="./lab build")
    late = [text for name, image in there.items() if (text := images.unusable(name, image))]
    if late:
        return refused(WARN, late[0].replace("; run: ", "; "))
    return ok(", ".join(f"{name} ({image.age()} old)" for name, image in there.items()))


def settings(case: Case) -> Finding:
    """Reads .env: names that mean nothing, and a secret that others can read."""
    path = case.root / ".env"
    try:
        text, mode = path.read_text(), stat.S_IMODE(path.stat().st_mode)
        given = read_dotenv(path)
    except FileNotFoundError:
        return skip("there is no .env: every setting has its default")
    except (OSError, LabError, UnicodeDecodeError) as error:
        return fail(f".env cannot be read: {error}", hint="correct it; .env.example shows how")
    if mode & (stat.S_IRGRP | stat.S_IROTH) and SECRETS.search(text):
        return fail(
            f".env holds a token or password, and its mode {mode:o} lets others read it",
            safe=True,
            fix=f"chmod 600 {shlex.quote(str(path))}",
        )
    strange = environment_file.strangers(given, environment_file.known())
    if strange:
        return warn(f".env: {strange[0]}", hint="correct the name, or remove it")
    return ok(f"{len(given)} settings in .env, mode {mode:o}")


def notes(case: Case) -> Finding:
    """Looks for the folder of the tool's own notes, which has to be the caller's alone."""
    try:
        return ok(str(state.folder(make=False)))
    except LabError as error:
        return refused(FAIL, error.text)


def owner(case: Case) -> Finding:
    """Looks for files of root's in a clone of somebody else's: the owner's next set-up fails on them."""
    whose = case.root.stat().st_uid
    places = [case.root / ".venv", *(case.root / "images" / name / ".venv" for name in case.known())]
    places += [case.root / name / ".venv" for name in paths.WITHOUT_IMAGE]
    foreign = [one for one in places if one.exists() and one.lstat().st_uid not in (whose,)]
    if foreign and whose != 0:
        return fail(
            f"{foreign[0]} is {owners.name_of(foreign[0].lstat().st_uid)}'s in a clone of {owners.name_of(whose)}'s",
            fix=f"sudo rm -r {shlex.quote(str(foreign[0]))}",
            hint="the next call makes it anew",
        )
    return ok(f"{owners.name_of(whose)}'s")


def listening(text: str) -> dict[int, tuple[int, str]]:
    """Returns port → (uid, inode) of every socket that listens, of a text like /proc/net/tcp."""
    rows = [line.split() for line in text.splitlines()[1:]]
    return {
        int(row[1].rpartition(":")[2], 16): (int(row[7]), row[9])
        for row in rows
        if len(row) > 9 and row[3] == ports.LISTEN
    }


def taken(case: Case) -> Finding:
    """Finds who else listens on the ports of the services; `up` would move to others."""
    from vlalab.runtimes import both

    there = {
        **listening(case.machine.read("/proc/net/tcp6") or ""),
        **listening(case.machine.read("/proc/net/tcp") or ""),
    }
    services = {
        name: one.ports[0].published for name, one in compose.read(case.root / "compose.yaml").items() if one.ports
    }
    ours = {name for name, port in services.items() if port in there} and {one.service for one in both.instances()}
    found = [(name, port, *there[port]) for name, port in services.items() if port in there and name not in ours]
    if found:
        name, port, uid, inode = found[0]
        return warn(
            f"port {port} of {name} is taken by {_program(inode) or 'a program'} of {owners.name_of(uid)}: "
            "up moves to another",
            fix=f"ss -ltnp 'sport = :{port}'",
            facts={"taken": [{"service": n, "port": p, "user": owners.name_of(u)} for n, p, u, _ in found]},
        )
    return ok(f"{len(services)} ports are free or ours")


def _program(inode: str) -> str:
    """Returns "python3 (pid 123)" for who holds a socket, "" where that is closed to the caller."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            held = any(os.readlink(one) == f"socket:[{inode}]" for one in (folder / "fd").iterdir())
        except OSError:
            continue
        if held:
            words = processes.command(int(folder.name))
            return f"{Path(words[0]).name if words else 'a program'} (pid {folder.name})"
    return ""


def launcher(case: Case) -> Finding:
    """Looks whether every file that the launcher needs is there: half of a clone starts and breaks later."""
    lack = [
        name
        for name in ("lab", "compose.yaml", "requirements.lock", "images/bake.json")
        if not (case.root / name).exists()
    ]
    if lack:
        return fail(f"the clone lacks {', '.join(lack)}", fix=f"git -C {shlex.quote(str(case.root))} checkout -- .")
    return ok(f"{len(paths.image_names())} environments, {len(compose.read(case.root / 'compose.yaml'))} services")


CHECKS = (
    Check("clone", "clone", "Half a clone starts and breaks later.", FAIL, "git checkout -- .", launcher),
    Check("clone-owner", "clone's owner", "A set-up by another user leaves what the owner cannot replace.", FAIL,
          "sudo rm -r .venv", owner),
    Check("locks", "locks", "What is installed would not be what is asked for.", FAIL, "./lab lock ENV", lock_files),
    Check("environments", "environments", "One of another lock is not what was tested.", FAIL,
          "./lab env ENV", environments,
          limit_s=5.0),
    Check("images", "images", "A container would run other versions than the lock.", WARN,
          "./lab build ENV", built_images),
    Check("settings", ".env", "A token that others can read is no secret; a misspelt name changes nothing.", FAIL,
          "chmod 600 .env", settings),
    Check("state", "tool's notes", "They say which processes run, and with which settings.", FAIL,
          "VLALAB_STATE in the shell",
          notes, before=("up",)),
    Check("ports", "ports", "A service whose port is taken moves to another.", WARN, "ss -ltnp", taken),
)  # fmt: skip
