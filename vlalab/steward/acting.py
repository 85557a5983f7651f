"""What the steward does: a fixed set of the lab's own commands, each run as a person would type it.

Of a request only the choice among services of compose.yaml gets into a command line, and no shell reads that.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from vlalab.commands import lifecycle, support
from vlalab.description import manifests
from vlalab.engine import docker
from vlalab.host import paths, secrets
from vlalab.host.console import say, unknown
from vlalab.runtimes import local
from vlalab.runtimes.steward import PAGE

VERBS = {"start": "up", "stop": "down"}
AT_ONCE = 4  # actions: each is a process of the host tool
STATUS_S, DOCTOR_S, LOG_S = 30.0, 120.0, 20.0  # longest wait for a command that looks
KEPT_S = {"status": 4.0, "log": 1.5}  # an answer is good for so long, however many people look
SHOWN = 32_000  # characters of an output: its end
LINES = 400  # of a log
DOWN_IS_THE_PAGE = f"that would take this page away; at the machine: ./lab down {PAGE}"
A_SHELL = "outside a container a notebook is a shell as whoever started it; at the machine: ./lab up {name}"


class Refused(Exception):
    """A request that is not done: the HTTP status and the sentence it is answered with."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status, self.why = status, why


@dataclass
class Action:
    """A service being started or stopped, or that was; times in seconds since the epoch, code None while it runs."""

    service: str
    what: str
    began: float = field(default_factory=time.time)
    ended: float | None = None
    code: int | None = None
    output: str = ""

    def told(self, known: Iterable[str]) -> dict[str, Any]:
        """Returns it as JSON has it, without those secrets."""
        return {**vars(self), "output": safe(self.output, known)}


class Kept:
    """An answer that is found anew when it is asked for and too old; who asks meanwhile waits for that one."""

    def __init__(self, find: Callable[[], Any], seconds: float):
        self._find, self._seconds = find, seconds
        self._lock, self._until, self._value = threading.Lock(), 0.0, None

    def get(self) -> Any:
        """Returns the answer."""
        with self._lock:
            if time.monotonic() > self._until:
                self._value = self._find()
                self._until = time.monotonic() + self._seconds
            return self._value

    def renew(self) -> None:
        """Finds it anew now."""
        with self._lock:
            self._until = 0.0
        self.get()


class Steward:
    """Looks, starts and stops. runtime: the page's, in which the page can reach what is started."""

    def __init__(self, runtime: str):
        self._runtime = runtime
        self._lock = threading.Lock()
        self._actions: dict[str, Action] = {}
        self._logs: dict[str, Kept] = {}
        self._status = Kept(lambda: _json("status", "--json", seconds=STATUS_S), KEPT_S["status"])
        self._doctor: dict[str, Any] = {"running": False, "at": None, "told": None, "error": ""}

    def status(self) -> dict[str, Any]:
        """Returns what `./lab status --json` says, and what was done from here."""
        told, error = self._status.get()
        with self._lock:
            there = list(self._actions.values())
        known = known_secrets() if there else ()
        actions = [action.told(known) for action in there]
        return {"status": told, "error": error, "actions": sorted(actions, key=lambda one: -one["began"])}

    def doctor(self) -> dict[str, Any]:
        """Returns what `./lab doctor --json` said when it was asked last."""
        return self._doctor

    def examine(self) -> dict[str, Any]:
        """Has the doctor look at the machine, unless it does."""
        with self._lock:
            if not self._doctor["running"]:
                self._doctor = {**self._doctor, "running": True}
                threading.Thread(target=self._examine, daemon=True).start()
        return self._doctor

    def _examine(self) -> None:
        told, error = _json("doctor", "--json", "--offline", seconds=DOCTOR_S)
        self._doctor = {"running": False, "at": time.time(), "told": told, "error": error}

    def log(self, name: str) -> dict[str, str]:
        """Returns the end of a service's log, without secrets."""
        name = _known(name)
        with self._lock:
            kept = self._logs.setdefault(name, Kept(lambda: {"log": safe(_log(name), known_secrets())}, KEPT_S["log"]))
        return kept.get()

    def begin(self, what: str, name: str) -> dict[str, Any]:
        """Returns an action that has begun. Raises Refused while one is under way for that service, or too many are."""
        name = _known(name)
        if name == PAGE:
            raise Refused(409, DOWN_IS_THE_PAGE)
        if what == "start" and self._runtime == local.NAME and name in manifests.notebooks().values():
            raise Refused(409, A_SHELL.format(name=name))
        with self._lock:
            under_way = [one for one in self._actions.values() if one.ended is None]
            if any(one.service == name for one in under_way):
                raise Refused(409, f"{name} is being started or stopped; wait until that has ended")
            if len(under_way) >= AT_ONCE:
                raise Refused(429, f"{AT_ONCE} services are being started or stopped; wait until one of them is done")
            action = self._actions[name] = Action(name, what)
        say(f"asked by the page: {what} {name}")
        told = action.told(())
        threading.Thread(target=self._act, args=[action], daemon=True).start()
        return told

    def _act(self, action: Action) -> None:
        flags = ["--runtime", self._runtime] if action.what == "start" else []
        try:
            # A session of its own: what has begun goes on when the steward ends.
            process = subprocess.Popen(
                _words(VERBS[action.what], action.service, *flags), cwd=paths.ROOT, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                action.output = _end(action.output + line.decode(errors="replace"))
            action.code = process.wait()
        except OSError as error:
            action.output, action.code = f"./lab cannot be run: {error}\n", 127
        self._status.renew()  # so that whoever hears that it has ended sees the service so
        action.ended = time.time()
        say(f"{action.what} {action.service} ended with code {action.code}:\n{safe(action.output, known_secrets())}")


def known_secrets() -> set[str]:
    """Returns the secrets that are known on this machine now."""
    docker.ask_again()
    return support.known_secrets()


def safe(text: str, known: Iterable[str]) -> str:
    """Returns a text without those secrets, and without what looks like one; of a long one the end."""
    return _end(secrets.removed(text, known))


def _all_safe(told: Any, known: Iterable[str]) -> Any:
    """Returns what JSON says, with every text in it safe."""
    if isinstance(told, dict):
        named = {name for name, one in told.items() if isinstance(one, str) and secrets.NAMED.fullmatch(name)}
        return {name: secrets.HIDDEN if name in named else _all_safe(one, known) for name, one in told.items()}
    if isinstance(told, list):
        return [_all_safe(one, known) for one in told]
    return safe(told, known) if isinstance(told, str) else told


def _end(text: str) -> str:
    """Returns the end of a text, from the beginning of a line on."""
    return text if len(text) <= SHOWN else text[-SHOWN:].partition("\n")[2]


def _known(name: str) -> str:
    """Returns the service of that name as compose.yaml has it. Raises Refused for any other."""
    known = lifecycle.long_lived()
    if name not in known:
        raise Refused(404, unknown("service", name[:80], known))
    return known[known.index(name)]


def _words(*words: str) -> list[str]:
    return [str(paths.ROOT / "lab"), *words]


def _run(*words: str, seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _words(*words), capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, cwd=paths.ROOT,
        timeout=seconds,
    )  # fmt: skip


def _json(*words: str, seconds: float) -> tuple[Any, str]:
    """Returns what a command says as JSON, its secrets removed, and "" or why there is nothing."""
    command = f"./lab {' '.join(words)}"
    try:
        done = _run(*words, seconds=seconds)
        return _all_safe(json.loads(done.stdout), known_secrets()), ""
    except subprocess.TimeoutExpired:
        return None, f"{command} did not answer within {seconds:g} s"
    except OSError as error:
        return None, f"{command} cannot be run: {error}"
    except ValueError:
        return None, safe(done.stderr.strip(), known_secrets()) or f"{command} ended with code {done.returncode}"


def _log(name: str) -> str:
    try:
        done = _run("logs", name, "--lines", str(LINES), seconds=LOG_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"./lab logs {name}: {error}"
    return done.stdout + done.stderr
