"""An application of any kind on a loopback port, in a thread of this process; the page as a program of its own."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer

import httpx
import uvicorn
from fastapi import FastAPI

from vla_contract.server.serving import address, listen, uvicorn_config

SECRET = "of-the-steward"
ROOT = Path(__file__).resolve().parents[2]
SHARED = (ROOT / "shared" / name for name in ("common", "contract", "evaluation", "datasets", "fast_libero"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *SHARED)))}


POLICY = """
import sys
from policies import SeeingPolicy
from serving import serving
from vla_contract.server.app import create_app
with serving(create_app(SeeingPolicy(unnorm_keys=())), int(sys.argv[1])) as url:
    print(url, flush=True)
    sys.stdin.read()
"""


@contextmanager
def killed(port: int = 0) -> Iterator[str]:
    """Serves a policy from a process of its own, which is killed when the block ends; gives the address."""
    env = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join((ENVIRONMENT["PYTHONPATH"], str(Path(__file__).parent)))}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", POLICY, str(port)], env=env, text=True, **pipes) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@contextmanager
def serving(app: FastAPI, port: int = 0, **tls: Path) -> Iterator[str]:
    """Serves while the block runs; gives the address. port 0: any free one. tls: `ssl_keyfile` and `ssl_certfile`."""
    with listen("127.0.0.1", port) as listener:
        config = uvicorn_config(app, "warning")
        vars(config).update(tls)
        config.timeout_graceful_shutdown = 0.1  # clients keep their connections
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while thread.is_alive() and not server.started:
            time.sleep(0.01)
        try:
            yield address(listener)
        finally:
            server.should_exit = True
            thread.join(30.0)


@contextmanager
def held_port() -> Iterator[int]:
    """Holds a port that servers of this user may listen on by turns, and nobody gets by chance meanwhile."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def nobody() -> str:
    """Return an address where nobody answers."""
    with listen("127.0.0.1", 0) as listener:
        return address(listener)


def program(*words: str, **variables: str) -> subprocess.Popen:
    """Return the page started as a program, its output in a pipe."""
    env = {**ENVIRONMENT, **variables}
    command = [sys.executable, "-m", "services.ui", *words]
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def address_of(process: subprocess.Popen) -> str:
    """Return the address that a page just started names in its log, as soon as it answers there."""
    lines = iter(process.stdout.readline, "")
    url = next(line for line in lines if "the page is at" in line).split("the page is at ")[1].split(",")[0]
    threading.Thread(target=process.stdout.read, daemon=True).start()  # a full pipe would stop it
    url = url.replace("0.0.0.0", "127.0.0.1")
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            httpx.get(f"{url}/livez")
            return url
        except httpx.ConnectError:
            time.sleep(0.1)
    raise TimeoutError(f"nobody answers at {url}")


class Answers(ThreadingMixIn, UnixStreamServer):
    """A steward that tells what a test says, on a real socket."""

    daemon_threads = True


@contextmanager
def steward(directory: Path, tells: dict):
    """Answers in that folder while the block runs; gives a list of what was asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.command} {self.path}")
            known = self.headers["authorization"] == f"Bearer {SECRET}"
            status, told = tells.get(asked[-1], (404, {"detail": "no such route"})) if known else (401, {})
            body = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    (directory / "secret").write_text(SECRET)
    opened = os.open(directory, os.O_PATH)
    with Answers(f"/proc/self/fd/{opened}/socket", Handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        yield asked
        server.shutdown()
    os.close(opened)
