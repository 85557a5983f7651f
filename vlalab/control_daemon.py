"""The control daemon of the page Services: it queries, starts and stops services with the lab's own commands.

`python -m vlalab.control_daemon DIRECTORY RUNTIME` serves DIRECTORY/socket to callers that know DIRECTORY/secret:

| route | result |
|---|---|
| `GET /status` | `./lab status --json`, each service's last action through this daemon, why some cannot start |
| `GET /doctor`, `POST /doctor` | the doctor's last report; run the doctor |
| `GET /services/NAME/log` | the end of a log, without secrets |
| `POST /services/NAME/start`, `…/stop`, `…/audit` | `./lab up NAME`, `./lab down NAME`, `./lab audit NAME` |
| `GET /services/NAME/action` | how far that is |
| `POST /runs/first` | evaluate the oracle: `./lab eval` |
| `POST /runs/NAME/resume`, `GET /runs/NAME/action` | `./lab eval … --resume NAME`; how far that is |
| `POST /runs/NAME/delete` | `./lab runs --delete NAME --yes` |
| `POST /data/NAME/check`, `GET /data/NAME/action` | `./lab dataset NAME --check`; how far that is |

No route takes a body or a query. The only inputs to a command line are the names of a service in compose.yaml, of a
run and of a data set on the volume, and that run's settings, each checked; no shell is used.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from secrets import token_urlsafe
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

from vlalab.commands import evaluation, lifecycle, support
from vlalab.description import compose, datasets, manifests, runs
from vlalab.engine import docker, volumes
from vlalab.host import paths, secrets, state
from vlalab.host.console import log_info, unknown
from vlalab.runtimes import local

VERBS = {"start": "up", "stop": "down", "audit": "audit"}
MAX_ACTIONS = 4  # concurrent; each is a process of the host tool
STATUS_S, DOCTOR_S, LOG_S = 30.0, 120.0, 20.0  # time limits of read-only commands
STATUS_FRESH_S = 4.0  # a result is shared by all callers for this long
MAX_OUTPUT = 32_000  # characters: the end of a longer one
LOG_LINES = "400"
DELETE_S = 120.0
SETTINGS = {  # of a run that a page resumes: flag, and what its value in config.json must look like
    "profile": r"[\w.-]+", "seed": r"\d+", "max_steps": r"\d+", "execute": r"\d+", "unnorm_key": r"\w[\w.-]*",
    "episodes": r"\d[\d,-]*",
}  # fmt: skip
POLL_S = 0.2  # between two looks at the output of an action
REQUEST_S = 10.0  # time limit for receiving a request


class RequestError(Exception):
    """A rejected request. status: of the HTTP response."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class ControlDaemon:
    """Handle requests. runtime: the page's runtime, in which it can reach the started services."""

    def __init__(self, runtime: str):
        self._runtime, self._lock = runtime, threading.Lock()
        # by service, its last action; times in seconds since the epoch, code None while it runs
        self._actions: dict[str, dict[str, Any]] = {}
        self._status_lock, self._status_until, self._status = threading.Lock(), 0.0, (None, "")
        self._doctor: dict[str, Any] = {"running": False, "at": None, "told": None, "error": ""}

    def answer(self, method: str, path: str) -> Any:
        """Return the JSON of a route. Raises RequestError."""
        match (method, *path.split("/")[1:]):
            case ("GET", "status"):
                status, error = self._read_status()
                with self._lock:
                    actions = sorted(self._actions.values(), key=lambda action: -action["began"])
                hidden = current_secrets() if actions else set()
                reported = [{**action, "output": safe(action["output"], hidden)} for action in actions]
                services = {name: self._obstacle(name) for name in lifecycle.long_lived()}
                obstacles = {name: text for name, text in services.items() if text}
                return {"status": status, "error": error, "actions": reported, "obstacles": obstacles}
            case ("GET", "doctor"):
                return self._doctor
            case ("POST", "doctor"):
                with self._lock:
                    if not self._doctor["running"]:
                        self._doctor = {**self._doctor, "running": True}
                        threading.Thread(target=self._examine, daemon=True).start()
                return self._doctor
            case ("GET", "services", name, "log"):
                output, error = run("logs", require_service(name), "--lines", LOG_LINES, seconds=LOG_S)
                return {"log": safe(output or error, current_secrets())}
            case ("POST", "services", name, verb) if verb in VERBS:
                return self._start_action(verb, require_service(name))
            case ("POST", "runs", "first"):
                return self._begin("first", "run", ["eval", *first_arguments()])
            case ("POST", "runs", name, "resume"):
                return self._begin("resume", f"run {name}", ["eval", *resume_arguments(require_run(name))])
            case ("POST", "data", name, "check"):
                return self._begin("check", f"data {name}", ["dataset", require_dataset(name), "--check"])
            case ("GET", "services" | "runs" | "data" as kind, name, "action"):
                key = name if kind == "services" else f"{kind.removesuffix('s')} {name}"
                action = self._actions.get(key, {})
                return {**action, "output": safe(action["output"], current_secrets())} if action else {}
            case ("POST", "runs", name, "delete"):
                output, error = run("runs", "--delete", require_run(name), "--yes", seconds=DELETE_S)
                if name in runs.runs():
                    raise RequestError(409, safe(error, current_secrets()))
                return {"deleted": name}
        raise RequestError(404, "route not found")

    def _read_status(self) -> tuple[Any, str]:
        """Return the output of `./lab status`, cached for STATUS_FRESH_S; concurrent callers wait for one run of it."""
        with self._status_lock:
            if time.monotonic() > self._status_until:
                self._status = read_json("status", "--json", seconds=STATUS_S)
                self._status_until = time.monotonic() + STATUS_FRESH_S
            return self._status

    def _examine(self) -> None:
        report, error = read_json("doctor", "--json", "--offline", seconds=DOCTOR_S)
        self._doctor = {"running": False, "at": time.time(), "told": report, "error": error}

    def _start_action(self, verb: str, name: str) -> dict[str, Any]:
        if name == compose.PAGE:
            raise RequestError(409, f"the page cannot stop itself; on the command line: ./lab down {compose.PAGE}")
        if verb == "start" and (obstacle := self._obstacle(name)):
            raise RequestError(409, obstacle)
        flags = [] if verb == "stop" else ["--runtime", self._runtime]
        return self._begin(verb, name, [VERBS[verb], name, *flags])

    def _obstacle(self, name: str) -> str:
        """Return why the page cannot start a service, with the command that helps, else ""."""
        if self._runtime == local.NAME and name in manifests.notebooks().values():
            return f"outside a container a notebook is a shell of its user; start it by ./lab up {name}"
        missing = lifecycle.missing_inputs(name, {})
        return f"missing {missing}" if missing else ""

    def _begin(self, verb: str, name: str, arguments: list[str]) -> dict[str, Any]:
        """Start a command of the lab about a service or a run. Raises RequestError if there are too many."""
        with self._lock:
            running = [action["service"] for action in self._actions.values() if action["ended"] is None]
            if name in running:
                raise RequestError(409, f"{name} is busy with another action; wait until that is done")
            if len(running) >= MAX_ACTIONS:
                raise RequestError(429, f"{MAX_ACTIONS} actions are under way; wait until one is done")
            action = {"service": name, "what": verb, "began": time.time(), "ended": None, "code": None, "output": ""}
            self._actions[name] = action
        log_info(f"request from the page: {verb} {name}")
        snapshot = dict(action)
        threading.Thread(target=self._act, args=[action, arguments], daemon=True).start()
        return snapshot

    def _act(self, action: dict[str, Any], arguments: list[str]) -> None:
        # In its own session and with a file for its output, so it continues when this process ends.
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [paths.ROOT / "lab", *arguments], cwd=paths.ROOT, start_new_session=True, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            code = None
            while code is None:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(POLL_S)
                start = max(os.fstat(output.fileno()).st_size - MAX_OUTPUT, 0)
                action["output"] = end_of(os.pread(output.fileno(), MAX_OUTPUT, start).decode(errors="replace"))
        action["code"] = code
        self._status_until = 0.0
        self._read_status()  # before the action ends, so a caller sees the service's new state
        action["ended"] = time.time()
        what = f"{action['what']} {action['service']}"
        log_info(f"{what} ended with code {code}:\n{safe(action['output'], current_secrets())}")


# --- read-only commands, and secrets --------------------------------------------------------------------------


def require_service(name: str) -> str:
    """Return the name of a service of compose.yaml. Raises RequestError for any other."""
    services = lifecycle.long_lived()
    if name not in services:
        raise RequestError(404, unknown("service", name[:80], services))
    return name


def require_run(name: str) -> str:
    """Return the name of a run on the volume. Raises RequestError for any other."""
    if name not in (names := runs.runs()):
        raise RequestError(404, unknown("run", name[:80], names))
    return name


def require_dataset(name: str) -> str:
    """Return the name of a data set on the volume. Raises RequestError for any other."""
    if name not in (names := datasets.available()) or name.startswith("-"):  # a container may have made it
        raise RequestError(404, unknown("data set", name[:80], names))
    return name


def first_arguments() -> list[str]:
    """Return the arguments of `./lab eval` for an empty lab: the default benchmark's own policy, once per task."""
    benchmark = manifests.benchmarks()[manifests.default_job()]
    return [next(iter(benchmark.suites)), "--policy", benchmark.fallback, "--trials", "1"]


def resume_arguments(name: str) -> list[str]:
    """Return the arguments of `./lab eval` that resume a run with its settings; the evaluator refuses all others.

    Raises RequestError if its config.json, which containers may write, is not like that of a run.
    """
    try:
        identity = json.loads((paths.volume() / "runs" / name / "config.json").read_text(encoding="utf-8"))
        suite, policy, assets = identity["suite"], identity["policy"]["name"], identity["assets"]["kind"]
        settings = {flag: str(identity[flag]) for flag in SETTINGS if identity.get(flag) is not None}
        settings["tasks"] = ",".join(str(int(task)) for task in identity["tasks"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(409, f"the settings of {name} cannot be read: {error}") from error
    wrong = [flag for flag, pattern in SETTINGS.items() if not re.fullmatch(pattern, settings.get(flag, "0"))]
    if suite not in manifests.suites() or policy not in evaluation.policies() or wrong:
        raise RequestError(
            409, f"{name} cannot be resumed from the page; on the command line: ./lab eval … --resume {name}"
        )
    flags = [part for flag, value in settings.items() for part in (f"--{flag.replace('_', '-')}", value)]
    more = ["--assets", assets] if assets in ("kit", "official") else []
    return [suite, "--policy", policy, *flags, *more, "--resume", name]


def current_secrets() -> set[str]:
    """Return the secrets currently known on this machine."""
    docker.forget_probe()
    return support.current_secrets()


def safe(value: Any, secret_values: set[str]) -> Any:
    """Return a text, or JSON with all its texts, without these values and text that looks like a secret."""
    if isinstance(value, dict):
        hidden = {name for name, entry in value.items() if isinstance(entry, str) and secrets.NAMED.fullmatch(name)}
        return {name: secrets.HIDDEN if name in hidden else safe(entry, secret_values) for name, entry in value.items()}
    if isinstance(value, list):
        return [safe(entry, secret_values) for entry in value]
    return end_of(secrets.redact(value, secret_values)) if isinstance(value, str) else value


def end_of(text: str) -> str:
    """Return the last MAX_OUTPUT characters of a text, from the start of a line."""
    return text if len(text) <= MAX_OUTPUT else text[-MAX_OUTPUT:].partition("\n")[2]


def read_json(*arguments: str, seconds: float) -> tuple[Any, str]:
    """Return a command's JSON output without secrets, and "" or the error."""
    output, error = run(*arguments, seconds=seconds)
    try:
        return safe(json.loads(output), current_secrets()), ""
    except ValueError:
        return None, safe(error, current_secrets())


def run(*arguments: str, seconds: float) -> tuple[str, str]:
    """Return the stdout of a lab command, and its stderr or the reason of its failure."""
    command = f"./lab {' '.join(arguments)}"
    try:
        done = subprocess.run(
            [paths.ROOT / "lab", *arguments], capture_output=True, text=True, errors="replace", cwd=paths.ROOT,
            stdin=subprocess.DEVNULL, timeout=seconds,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{command} failed: {error}"
    return done.stdout, done.stderr.strip() or f"{command} ended with code {done.returncode}"


# --- HTTP over the socket -------------------------------------------------------------------------------------


class ControlServer(ThreadingMixIn, UnixStreamServer):
    """A server on a socket that only the page and its user can open."""

    daemon_threads, block_on_close = True, False

    def __init__(self, address: str, daemon: ControlDaemon, secret: str):
        self.daemon, self.secret = daemon, f"Bearer {secret}".encode()
        super().__init__(address, Handler)


class Handler(BaseHTTPRequestHandler):
    """One request of one connection."""

    timeout = REQUEST_S
    server: ControlServer

    def do_GET(self) -> None:
        """Answer a GET or POST request."""
        try:
            credentials = self.headers.get("authorization", "").encode("utf-8", "replace")
            if not hmac.compare_digest(credentials, self.server.secret):
                raise RequestError(401, "wrong secret")
            if self.headers.get("content-length", "0") != "0" or "transfer-encoding" in self.headers:
                raise RequestError(413, "the request must not have a body")
            status, answer = 200, self.server.daemon.answer(self.command, self.path)
        except RequestError as rejection:
            status, answer = rejection.status, {"detail": str(rejection)}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Log no requests; the daemon logs its actions."""


def main(directory: Path, runtime: str) -> None:
    """Serve with a new secret. Root gives secret and socket to the user of the page's container."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    secret = token_urlsafe(32)
    state.write(directory / "secret", secret)
    os.chdir(directory)  # a socket's address has at most 107 characters, and its path may be longer
    Path("socket").unlink(missing_ok=True)
    umask = os.umask(0o177)  # only the owner may open the socket
    with ControlServer("socket", ControlDaemon(runtime), secret) as server:
        os.umask(umask)
        if os.geteuid() == 0:
            for name in ("secret", "socket"):
                os.chown(name, *volumes.owner(), follow_symlinks=False)
        log_info(f"the page's control daemon listens at {directory}/socket")
        try:
            server.serve_forever()
        finally:
            (directory / "socket").unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
