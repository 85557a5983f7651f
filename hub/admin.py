"""`python -m hub.admin ACTION OPTIONS ARGUMENT …`: `./lab class` as root. OPTIONS: keyword arguments, in JSON."""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from hub import grants, limits, sandbox, store
from lessons.exercises import NAMES
from lessons.exercises.table import print_table

STOP_S, START_S = 180.0, 900.0  # as long as the hub waits for thirty servers on two cores
GRADE_S, MAX_REPORT = "900", 1_000_000  # seconds and bytes of the check of one student's exercises
# Run by the student, so that nothing is read that the student cannot read.
PACK = 'find "./$0" -type f -size -100M -print0 | tar -c --null --no-recursion -T - | head -c 1G'


def add(*arguments: str) -> None:
    """Create accounts of CSV files or names; print their one-time codes as CSV. Existing ones stay as they are."""
    names = [name for text in arguments for name in (store.names_in(Path(text)) if Path(text).is_file() else [text])]
    for name in names:
        store.check_name(name)
    existing = store.accounts()
    print("name,code")
    for name in names:
        if name not in existing:
            store.create(name)
        print(f"{name},{'(exists)' if name in existing else store.set_code(name)}", flush=True)


def print_students() -> None:
    """Print the students: login, server, memory, disk."""
    running: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(RuntimeError):
        running = {user["name"]: user.get("servers", {}).get("", {}) for user in api("GET", "users")}
    print(f"{'name':20}{'login':10}{'server':10}{'MB':>7}{'disk MB':>10}  id")
    for name, account in store.accounts().items():
        login = "code" if account.is_code and account.secret else "password" if account.secret else "other"
        server = running.get(name, {})
        state = server.get("pending") or ("ready" if server.get("ready") else "-")
        memory = f"{limits.memory_bytes(account.id) / 1e6:.0f}"
        used = subprocess.run(["du", "-s", "--block-size=MB", account.home], capture_output=True, text=True).stdout
        print(f"{name:20}{login:10}{state:10}{memory:>7}{used.partition('MB')[0] or 0:>10}  {account.id}")


def reset(*names: str) -> None:
    """Give students a new one-time code; their sessions end, their work stays."""
    print("name,code")
    for name in names:
        forget(name)
        print(f"{name},{store.set_code(name)}", flush=True)


def remove(*names: str, keep_work: bool = False) -> None:
    """Remove accounts, and the work unless `keep_work`."""
    settings = store.read("settings.json")
    for name in names:
        account = store.require(name)
        forget(name)
        store.remove(name)
        if settings["policy"]:
            from vla_contract.server import token_file

            with contextlib.suppress(ValueError):  # the student has never started a server
                token_file.remove(token_file.path_on(Path(settings["volume"])), name)
        if not keep_work:
            limits.remove_home(account)
        print(f"{name}: removed; " + (f"the work stays in {account.home}" if keep_work else "the work too"))


def api(method: str, path: str, body: Any = None) -> Any:
    """Return the hub's answer, None if there is no such user. Raises RuntimeError if it does not run, or refuses."""
    import requests  # here and above: what only some actions need takes long to import

    hub = store.read("settings.json").get("hub_url", "")  # a class of an older lab has none until `class up`
    url, token = f"{hub}/hub/api/{path}", store.read("secrets.json").get("api", "")
    try:
        answer = requests.request(method, url, json=body, headers={"Authorization": f"token {token}"}, timeout=60)
    except requests.RequestException:
        raise RuntimeError("the class does not run; start it: ./lab class up") from None
    if answer.status_code >= 400 and answer.status_code != 404:
        raise RuntimeError(f"the hub refused {method} {path}: {answer.json().get('message', answer.text)}")
    return answer.json() if answer.content and answer.status_code != 404 else None


def repeat_until(is_done: Callable[[], Any], problem: str, patience_s: float) -> None:
    """Call a function until it returns true. Raises RuntimeError with the problem after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while not is_done():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{problem} within {patience_s:.0f} s; see ./lab class logs")
        time.sleep(0.5)


def server_of(name: str) -> dict[str, Any]:
    """Return the hub's entry of a student's server; {} if none starts, runs or stops."""
    servers = (api("GET", f"users/{name}") or {}).get("servers") or {}
    return dict(servers.get("", {}))


def is_ready(name: str) -> bool:
    """Return whether a student's server answers. Raises RuntimeError if its start failed."""
    if not (server := server_of(name)):
        raise RuntimeError(f"{name}'s server did not start: never logged in? see ./lab class logs")
    return bool(server.get("ready"))


def stop(name: str) -> Any:
    """End a student's server, whatever state it is in; return the choices with which it was started."""
    account = store.require(name)
    choices = server_of(name).get("user_options") or {}

    def is_gone() -> bool:
        if server_of(name):
            limits.kill(account.id)  # also one that is paused, or that still starts
            with contextlib.suppress(RuntimeError):  # the hub may refuse while a start is pending
                api("DELETE", f"users/{name}/server")
        return not server_of(name)

    repeat_until(is_gone, f"{name}'s server did not end", STOP_S)
    return choices


def forget(name: str) -> None:
    """Stop a student's server and end the student's sessions."""
    stop(name)
    api("DELETE", f"users/{name}")


def restart(*names: str) -> None:
    """Restart students' servers; files stay, running cells end."""
    for name in names:
        api("POST", f"users/{name}/server", stop(name))
        repeat_until(partial(is_ready, name), f"{name}'s server did not start", START_S)
        print(f"{name}: restarted")


def gpu(action: str, name: str, hours: float = 2.0, gb: float = 4.0, gpu: int = 0) -> None:
    """Grant a GPU to a student's notebook, which restarts, or revoke it."""
    if action == "grant":
        made = grants.grant(name, hours, gb, gpu)
        until = time.strftime("%H:%M", time.localtime(made.until))
        print(f"{name}: {made.gb:g} GB of GPU {made.gpu} until {until}; the notebook restarts")
    elif not grants.revoke(name):
        raise ValueError(f"{name} has no GPU grant")
    with contextlib.suppress(RuntimeError):  # the class does not run, or the student never logged in
        restart(name)


def grades(csv: str = "") -> None:
    """Check all students' exercises and print a table. Each student's files run as that student, in the sandbox."""
    students = store.accounts()
    if not students:
        raise ValueError("this class has no students; add some: ./lab class add students.csv")
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        results = dict(zip(students, pool.map(grade, students.values()), strict=True))
    print_table(results, Path(csv) if csv else None)


def grade(account: store.Account) -> dict[str, dict[str, str]]:
    """Return the state of a student's exercises."""
    try:
        found = json.loads(report_of(account, store.read("settings.json")).splitlines()[-1])
        return {n: {k: str(found[n][k])[:300] for k in ("state", "mistake")} for n in NAMES if n in found}
    except (OSError, ValueError, IndexError, KeyError, TypeError):
        return {"": {"state": "failed", "mistake": "the check ended without results"}}


def report_of(account: store.Account, settings: dict[str, Any]) -> str:
    """Return what the check of a student's files prints, in the sandbox or a container: it runs the student's code."""
    home, report = limits.prepare_home(account, settings["disk_gb"]), f".grades-{secrets.token_hex(8)}"
    words = ["timeout", GRADE_S, next(iter(settings.get("pythons", {"": "python"}).values()))]
    words += ["-m", "lessons.exercises.check", "--report", "--directory", f"/home/{account.name}/notebooks/exercises"]
    if settings["runtime"] == "docker":
        from hub.spawners import run_in_container

        return run_in_container(account, settings, words)
    variables = {"PATH": "/usr/bin:/bin", "PYTHONPATH": settings["python_path"], "OMP_NUM_THREADS": "1"}
    subprocess.run(sandbox.command(sandbox.specification(account, settings, log=report), words), env=variables)
    with open(os.open(home / report, os.O_RDONLY | os.O_NOFOLLOW)) as file:
        text = file.read(MAX_REPORT)
    (home / report).unlink()
    return text


def hand_out(*names: str) -> None:
    """Copy files into each student's notebooks; existing ones stay as they are."""
    files = [Path(name).resolve(strict=True) for name in names]
    words = [word for path in files for word in ("-C", str(path.parent), path.name)]
    pack = subprocess.run(["tar", "-c", "--mode=u+rwX,go=", *words], check=True, capture_output=True).stdout
    for account in store.accounts().values():
        as_student(account, ["sh", "-c", "mkdir -p notebooks && tar -x --skip-old-files -C notebooks"], pack)
        print(f"{account.name}: {', '.join(path.name for path in files)}")


def collect(what: str, target: str) -> None:
    """Copy a file or directory of each student's notebooks to `target`/STUDENT; links stay behind."""
    for account in store.accounts().values():
        pack = as_student(account, ["env", "-C", "notebooks", "sh", "-c", PACK, what])
        directory = Path(target) / account.name
        directory.mkdir(parents=True, exist_ok=True)
        unpack = ["tar", "-x", "-v", "--no-same-owner", "--no-same-permissions", "-C", str(directory)]
        files = subprocess.run(unpack, input=pack, capture_output=True).stdout
        print(f"{account.name}: {len(files.splitlines())} files")


def as_student(account: store.Account, command: list[str], data: bytes = b"") -> bytes:
    """Return the output of a command in a student's home, run with the student's rights; empty if it fails."""
    home = limits.prepare_home(account, store.read("settings.json")["disk_gb"])
    who: dict[str, Any] = {"user": account.uid, "group": account.uid, "extra_groups": []}
    done = subprocess.run(command, cwd=home, input=data, capture_output=True, env={"PATH": "/usr/bin:/bin"}, **who)
    return bytes(done.stdout)


def backup(file: str) -> None:
    """Write accounts, settings, secrets and all homes to a tar archive; a new hub makes its database again."""
    target = Path(file).absolute()
    for account in store.accounts().values():
        limits.prepare_home(account, store.read("settings.json")["disk_gb"])
    new = target.with_name(f".{target.name}.new")
    new.touch(mode=0o600)
    tar = ["tar", "--create", f"--file={new}", "--numeric-owner", "--exclude=./homes/*.img", "--exclude=./hub.sqlite*"]
    done = subprocess.run([*tar, "--directory", store.directory(), "."], capture_output=True, text=True)
    if done.returncode > 1:  # 1: a file changed while it was read
        new.unlink()
        raise RuntimeError(f"tar failed: {done.stderr.strip()}")
    new.replace(target)
    print(f"{target}: {target.stat().st_size / 1e6:.0f} MB, {len(store.accounts())} students")


def restore(file: str) -> None:
    """Unpack a backup into an empty class. Homes get the disk limit that they had."""
    if store.accounts():
        raise ValueError(f"{store.directory()} has students already; restore into another volume, or remove it first")
    tar = ["tar", "-xp", f"--file={Path(file).absolute()}", "--numeric-owner", f"--directory={store.directory()}"]
    made_with = subprocess.run([*tar, "--to-stdout", "./versions.json"], check=True, capture_output=True).stdout
    store.check_versions(json.loads(made_with))
    subprocess.run([*tar, "--exclude=./homes"], check=True)
    for account in store.accounts().values():
        limits.prepare_home(account, store.read("settings.json")["disk_gb"])
    subprocess.run(tar, check=True)
    print(f"restored {len(store.accounts())} students; start the class: ./lab class up")


ACTIONS: dict[str, Callable[..., Any]] = {
    "add": add, "list": print_students, "reset": reset, "remove": remove, "restart": restart, "gpu": gpu,
    "grades": grades, "hand-out": hand_out, "collect": collect, "backup": backup, "restore": restore,
    "down": lambda: [stop(name) for name in store.accounts()],
    "check": lambda: store.check_versions(store.read("versions.json")),
}  # fmt: skip


if __name__ == "__main__":
    action, options, *arguments = sys.argv[1:]
    try:
        ACTIONS[action](*arguments, **json.loads(options))
    except (ValueError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"lab: {error}")
