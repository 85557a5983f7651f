"""`python -m hub.admin ACTION …`: what `./lab class` does with accounts and running servers, as the hub's owner."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hub import grants, homes, limits, sandbox, store
from lessons.exercises import NAMES
from lessons.exercises.table import print_table

DATABASE = "hub.sqlite"
FILES = ("accounts.json", "settings.json", "secrets.json", "grants.json", "jupyterhub_extra.py")  # of a backup
PATIENCE_S = 180.0
GRADE_S = 900.0  # for one student's exercises
MAX_REPORT = 1_000_000  # bytes


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="hub.admin", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    for name in ("remove", "gpu", "grades", *ACTIONS):
        action = actions.add_parser(name)
        action.add_argument("arguments", nargs="*")
        action.add_argument("--keep-work", action="store_true")
        action.add_argument("--csv", type=Path)
        for flag, default in (("--hours", 2.0), ("--gb", 4.0), ("--gpu", 0)):
            action.add_argument(flag, type=type(default), default=default)
    options = parser.parse_args()
    try:
        if options.action == "remove":
            remove(options.arguments, options.keep_work)
        elif options.action == "grades":
            grades(options.csv)
        elif options.action == "gpu":
            gpu(options.arguments, options.hours, options.gb, options.gpu)
        else:
            ACTIONS[options.action](options.arguments)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


# --- accounts -----------------------------------------------------------------------------------------------


def add(arguments: list[str]) -> None:
    """Create accounts of CSV files or names; print their one-time codes as CSV. Existing ones stay as they are."""
    names = [name for text in arguments for name in (store.names_in(Path(text)) if Path(text).is_file() else [text])]
    for name in names:
        store.check_name(name)
    existing = store.accounts()
    print("name,code")
    for name in names:
        print(f"{name},{store.add(name)}" if name not in existing else f"{name},(exists)", flush=True)


def print_students(arguments: list[str]) -> None:
    """Print the students: login, server, memory, disk."""
    running = {}
    with contextlib.suppress(RuntimeError):
        running = {user["name"]: user.get("servers", {}).get("", {}) for user in api("GET", "users")}
    print(f"{'name':20}{'login':10}{'server':10}{'MB':>7}{'disk MB':>10}  id")
    for name, account in store.accounts().items():
        login = "code" if account.is_code and account.secret else "password" if account.secret else "other"
        server = running.get(name) or {}
        state = server.get("pending") or ("ready" if server.get("ready") else "-")
        memory = limits.memory_bytes(account.id)
        used = shutil.disk_usage(account.home).used if homes.image(account).exists() else tree_bytes(account.home)
        megabytes = f"{memory / 1e6:.0f}" if memory else "-"
        print(f"{name:20}{login:10}{state:10}{megabytes:>7}{used / 1e6:>10.0f}  {account.id}")


def reset(arguments: list[str]) -> None:
    """Give students a new one-time code; their sessions end, their work stays."""
    print("name,code")
    for name in arguments:
        store.require(name)
        forget(name)
        print(f"{name},{store.reset(name)}", flush=True)


def remove(arguments: list[str], keep_work: bool) -> None:
    """Remove accounts, and the work unless `keep_work`."""
    settings = store.read("settings.json")
    for name in arguments:
        account = store.require(name)
        forget(name)
        store.remove(name)
        if settings["policy"]:
            from vla_contract.server import token_file

            with contextlib.suppress(ValueError):  # the student has never started a server
                token_file.remove(token_file.path_on(Path(settings["volume"])), name)
        if keep_work:
            print(f"{name}: removed; the work stays in {account.home}")
            continue
        homes.unmount(account)
        homes.image(account).unlink(missing_ok=True)
        shutil.rmtree(account.home)
        print(f"{name}: removed, with all work")


# --- servers ------------------------------------------------------------------------------------------------


def api(method: str, path: str, body: Any = None) -> Any:
    """Return the answer of the hub. Raises RuntimeError if it does not run, or refuses."""
    import requests  # here and below: what only some actions need takes long to import

    settings, token = store.read("settings.json"), store.read("secrets.json").get("api", "")
    url = f"http://{settings.get('hub_ip', '127.0.0.1')}:{settings.get('hub_port', 0)}/hub/api/{path}"
    try:
        answer = requests.request(method, url, json=body, headers={"Authorization": f"token {token}"}, timeout=60)
    except requests.RequestException:
        raise RuntimeError("the class does not run; start it: ./lab class up") from None
    if answer.status_code >= 400 and answer.status_code != 404:
        raise RuntimeError(f"the hub refused {method} {path}: {answer.json().get('message', answer.text)}")
    return answer.json() if answer.content and answer.status_code != 404 else None


def stop(name: str) -> dict[str, Any]:
    """End a student's server, whatever state it is in; return the choices with which it was started."""
    account, deadline = store.require(name), time.monotonic() + PATIENCE_S
    choices: dict[str, Any] = {}
    while server := ((api("GET", f"users/{name}") or {}).get("servers") or {}).get(""):
        choices = server.get("user_options") or choices
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name}'s server did not end within {PATIENCE_S:.0f} s; see ./lab class logs")
        limits.kill(account.id)  # also one that is stopped, or that still starts
        with contextlib.suppress(RuntimeError):  # the hub refuses while the start is pending
            api("DELETE", f"users/{name}/server")
        time.sleep(0.5)
    return choices


def forget(name: str) -> None:
    """Stop a student's server and end the student's sessions."""
    stop(name)
    api("DELETE", f"users/{name}")


def restart(arguments: list[str]) -> None:
    """Restart students' servers; files stay, running cells end."""
    for name in arguments:
        choices = stop(name)
        if api("GET", f"users/{name}") is None:
            raise ValueError(f"{name} has never logged in, so there is no server to restart")
        api("POST", f"users/{name}/server", choices)
        deadline = time.monotonic() + PATIENCE_S
        while not api("GET", f"users/{name}")["servers"].get("", {}).get("ready"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name}'s server did not start within {PATIENCE_S:.0f} s; see ./lab class logs")
            time.sleep(0.5)
        print(f"{name}: restarted")


def down(arguments: list[str]) -> None:
    """Stop all students' servers."""
    for name in store.accounts():
        stop(name)


def gpu(arguments: list[str], hours: float, gb: float, number: int) -> None:
    """Grant a GPU to a student's notebook, which restarts, or revoke it."""
    action, name = arguments
    if action == "grant":
        made = grants.grant(name, hours, gb, number)
        until = time.strftime("%H:%M", time.localtime(made.until))
        print(f"{name}: {made.gb:g} GB of GPU {made.gpu} until {until}; the notebook restarts")
    elif not grants.revoke(name):
        raise ValueError(f"{name} has no GPU grant")
    with contextlib.suppress(RuntimeError):  # the class does not run
        if api("GET", f"users/{name}"):
            restart([name])


# --- teaching -----------------------------------------------------------------------------------------------


def grades(csv_path: Path | None) -> None:
    """Check all students' exercises and print a table. Each student's files run as that student, in the sandbox."""
    settings = store.read("settings.json")
    python = next(iter(settings["pythons"].values()))
    variables = {"PATH": "/usr/bin:/bin", "PYTHONPATH": settings["python_path"], "OMP_NUM_THREADS": "1"}

    def grade(account: store.Account) -> dict[str, dict[str, str]]:
        home, report = homes.prepare(account, settings["disk_gb"]), f".grades-{secrets.token_hex(8)}"
        spec = sandbox.specification(account, settings, log=report)
        words = [python, "-m", "lessons.exercises.check", "--report", "--directory"]
        line = sandbox.command(spec, [*words, f"{spec['target']}/notebooks/exercises"])
        subprocess.run(line, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=GRADE_S)
        try:
            with open(os.open(home / report, os.O_RDONLY | os.O_NOFOLLOW)) as file:
                found = json.loads(file.read(MAX_REPORT).splitlines()[-1])
            (home / report).unlink()
            return {n: {k: str(found[n][k])[:300] for k in ("state", "mistake")} for n in NAMES if n in found}
        except (OSError, ValueError, IndexError, KeyError, TypeError):
            return {"": {"state": "failed", "mistake": "the check ended without results"}}

    students = store.accounts()
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        results = dict(zip(students, pool.map(grade, students.values()), strict=True))
    if not results:
        raise ValueError("this class has no students; add some: ./lab class add students.csv")
    print_table(results, csv_path)


def hand_out(arguments: list[str]) -> None:
    """Copy files into each student's notebooks; existing ones stay as they are."""
    files = [Path(name).absolute() for name in arguments]
    if missing := [str(path) for path in files if not path.exists()]:
        raise ValueError(f"{missing[0]} does not exist")
    words = [word for path in files for word in ("-C", str(path.parent), path.name)]
    pack = subprocess.run(["tar", "-c", "--mode=u+rwX,go=", *words], check=True, capture_output=True).stdout
    for account in store.accounts().values():
        as_student(account, ["sh", "-c", "mkdir -p notebooks && tar -x --skip-old-files -C notebooks"], pack)
        print(f"{account.name}: {', '.join(path.name for path in files)}")


def collect(arguments: list[str]) -> None:
    """Copy a file or directory of each student's notebooks to DIRECTORY/STUDENT; links stay behind."""
    what, target = arguments
    for account in store.accounts().values():
        # As the student, so that nothing is read that the student cannot read.
        words = ["find", f"./{what}", "-type", "f", "-size", "-100M", "-print0"]
        names = as_student(account, words, cwd="notebooks")
        pack = as_student(account, ["tar", "-c", "--null", "--no-recursion", "-T", "-"], names, cwd="notebooks")
        directory = Path(target) / account.name
        directory.mkdir(parents=True, exist_ok=True)
        unpack = ["tar", "-x", "--no-same-owner", "--no-same-permissions", "-C", str(directory)]
        subprocess.run(unpack, input=pack, check=bool(names), capture_output=True)
        print(f"{account.name}: {names.count(bytes(1))} files")


def as_student(account: store.Account, command: list[str], data: bytes = b"", cwd: str = "") -> bytes:
    """Return the output of a command in a student's home, run with the student's rights; empty if it fails."""
    home = homes.prepare(account, store.read("settings.json")["disk_gb"])
    if cwd:
        command = ["env", "-C", cwd, *command]  # a shell's `cd` asks for the whole path, which is root's
    who: dict[str, Any] = {"user": account.uid, "group": account.uid, "extra_groups": []}
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=home, input=data, capture_output=True, env=environment, **who)
    return bytes(done.stdout)


# --- backup, database ---------------------------------------------------------------------------------------


def backup(arguments: list[str]) -> None:
    """Write accounts, secrets, the hub's database and all homes to a tar archive."""
    target = Path(arguments[0]).absolute()
    copy = store.directory() / "backup" / DATABASE
    copy.parent.mkdir(mode=0o700, exist_ok=True)
    copy.unlink(missing_ok=True)
    databases = sqlite3.connect(store.directory() / DATABASE), sqlite3.connect(copy)
    with contextlib.closing(databases[0]) as source, contextlib.closing(databases[1]) as destination:
        source.backup(destination)
    for account in store.accounts().values():
        if homes.image(account).exists():
            homes.prepare(account, 0)
    names = [name for name in FILES if (store.directory() / name).exists()]
    homes_there = ["homes"] if (store.directory() / "homes").is_dir() else []
    new = target.with_name(f".{target.name}.new")
    new.touch(mode=0o600)
    tar = [
        "tar",
        "--create",
        "--file",
        str(new),
        "--numeric-owner",
        "--exclude=homes/*.img",
    ]
    tar += ["--directory", str(store.directory()), *names, *homes_there, "--directory", str(copy.parent), DATABASE]
    done = subprocess.run(tar, capture_output=True, text=True)
    copy.unlink()
    if done.returncode > 1:  # 1: a file changed while it was read
        new.unlink()
        raise RuntimeError(f"tar failed: {done.stderr.strip()}")
    new.replace(target)
    print(f"{target}: {target.stat().st_size / 1e6:.0f} MB, {len(store.accounts())} students")


def restore(arguments: list[str]) -> None:
    """Unpack a backup into an empty class. Homes get the disk limit that they had."""
    source = Path(arguments[0]).absolute()
    if store.accounts():
        raise ValueError(f"{store.directory()} has students already; restore into another volume, or remove it first")
    tar = ["tar", "--extract", "--file", str(source), "--numeric-owner", "--same-owner", "--preserve-permissions"]
    subprocess.run([*tar, "--exclude=homes", "--directory", str(store.directory())], check=True)
    check([])
    for account in store.accounts().values():
        homes.prepare(account, store.read("settings.json")["disk_gb"])
    subprocess.run([*tar, "--directory", str(store.directory())], check=True)
    print(f"restored {len(store.accounts())} students; start the class: ./lab class up")


def check(arguments: list[str]) -> None:
    """Raise ValueError if this class was made by a newer lab or JupyterHub."""
    version = store.read("settings.json").get("version", store.VERSION)
    if version > store.VERSION:
        raise ValueError(f"this class has layout {version}, this lab knows {store.VERSION}; update the lab")
    if not (database := store.directory() / DATABASE).exists():
        return
    with contextlib.closing(sqlite3.connect(database)) as connection:
        try:
            rows = connection.execute("select version_num from alembic_version").fetchall()
        except sqlite3.OperationalError:
            return  # a new database, or one from before migrations, which JupyterHub migrates or refuses itself
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError
    from jupyterhub import dbutil

    config = Config()
    config.set_main_option("script_location", dbutil.ALEMBIC_DIR)
    for (revision,) in rows:
        try:
            ScriptDirectory.from_config(config).get_revision(revision)
        except CommandError:
            raise ValueError(
                f"{database} has revision {revision}, which this JupyterHub does not know: a newer lab made it. Update "
                f"the lab, or restore a backup: ./lab class restore FILE"
            ) from None


def tree_bytes(path: Path) -> int:
    """Return the size of a directory's files."""
    return sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())


ACTIONS = {
    "add": add, "list": print_students, "reset": reset, "restart": restart, "down": down, "hand-out": hand_out,
    "collect": collect, "backup": backup, "restore": restore, "check": check,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
