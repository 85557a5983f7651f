"""A class on this machine: students log in at once, and a notebook of each imports numpy and asks the served policy.

Needs root, as a class does. `--students N` changes the number.

    sudo ./lab bench class [--quick]
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests
from tornado.ioloop import IOLoop
from tornado.websocket import websocket_connect

from bench.common import ROOT, figure, flags, served
from bench.fair import make_app
from tests import ports
from vla_contract.server import token_file

ENVIRONMENT = "ws_mdl"
INFER_S = 0.05  # of the served policy, for a batch
PASSWORD = "a-password-of-the-benchmark"
CELL = """
import os, numpy as np
from vla_contract import Observation, PolicyClient
images = {name: np.zeros((256, 256, 3), np.uint8) for name in ("agentview", "wrist")}
client = PolicyClient(os.environ["VLALAB_NOTEBOOK_POLICY"], os.environ["VLALAB_TOKEN"])
observation = Observation(images, None, "stack the bowls", session="bench", step=0)
print(client.act(observation).actions.shape)
"""


class Lab:
    """`./lab` with a volume and a state of its own."""

    def __init__(self, directory: Path) -> None:
        self.volume, state = directory / "volume", directory / "state"
        self.variables = {**os.environ, "VLALAB_VOLUME": str(self.volume), "VLALAB_STATE": str(state)}
        for path in (self.volume, state):
            path.mkdir(mode=0o700)

    def __call__(self, *words: str, check: bool = True) -> str:
        command = [str(ROOT / "lab"), *words]
        return str(subprocess.run(command, env=self.variables, stdout=subprocess.PIPE, text=True, check=check).stdout)


class Student:
    """A browser's session, without a browser."""

    def __init__(self, url: str, name: str, code: str) -> None:
        self.url, self.name, self.code, self.session = url, name, code, requests.Session()
        self.session.trust_env = False  # no proxy

    def log_in(self) -> None:
        """Log in for the first time and wait for JupyterLab. Raises RuntimeError if it does not come."""
        self.session.get(f"{self.url}/hub/login", timeout=600)
        form = {"username": self.name, "password": self.code, "new": PASSWORD, "again": PASSWORD}
        form["_xsrf"] = self.session.cookies.get("_xsrf", path="/hub/") or ""
        answer = self.session.post(f"{self.url}/hub/login", data=form, timeout=600)
        answer.raise_for_status()
        deadline = time.monotonic() + 1800
        while not (answer.ok and "/lab" in answer.url):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: {answer.status_code} at {answer.url}")
            time.sleep(1)
            answer = self.session.get(f"{self.url}/user/{self.name}/lab", timeout=600)

    def run(self, code: str) -> str:
        """Return the output of a cell in a new kernel."""
        base, xsrf = f"{self.url}/user/{self.name}/", self.session.cookies.get("_xsrf", path=f"/user/{self.name}/")
        kernel = self.session.post(f"{base}api/kernels", json={}, headers={"X-XSRFToken": xsrf or ""}, timeout=600)
        kernel.raise_for_status()
        address = f"{base}api/kernels/{kernel.json()['id']}/channels".replace("http", "ws", 1)
        cookie = "; ".join(f"{entry.name}={entry.value}" for entry in self.session.cookies if entry.path != "/hub/")
        header = {"msg_id": "1", "username": "", "session": "1", "msg_type": "execute_request", "version": "5.3"}
        content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False, "stop_on_error": True}
        message = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}, "content": content}

        async def execute() -> str:
            from tornado.httpclient import HTTPRequest

            patience = {"connect_timeout": 600.0, "request_timeout": 600.0}  # thirty kernels start at once
            connection = await websocket_connect(HTTPRequest(address, headers={"Cookie": cookie}, **patience))
            await connection.write_message(json.dumps(message))
            text = ""
            while (data := await connection.read_message()) is not None:
                answer: dict[str, Any] = json.loads(data)
                text += answer["content"].get("text", "") if answer["msg_type"] == "stream" else ""
                text += answer["content"].get("evalue", "") if answer["msg_type"] == "error" else ""
                if answer["msg_type"] == "execute_reply":
                    return text
            raise RuntimeError("the kernel's connection was closed")

        output: str = IOLoop(make_current=False).run_sync(execute)
        return output


def main() -> None:
    """Run the class and print the FIGURE lines."""
    parser = flags(__doc__.partition("\n")[0], "three students")
    parser.add_argument("--students", type=int)
    options = parser.parse_args()
    count = options.students or (3 if options.quick else 30)
    names = [f"student{number:02}" for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="vlalab-bench-class-", ignore_cleanup_errors=True) as directory:
        lab = Lab(Path(directory))
        port = str(ports.free_ports(1)[0])
        try:
            with served(make_app, str(token_file.path_on(lab.volume)), INFER_S) as policy:
                limits = ("--memory", "2", "--disk", "0.2")
                lab("class", "up", "--port", port, "--environments", ENVIRONMENT, *limits, "--policy", policy)
                lines = lab("class", "add", *names).splitlines()[1:]
                students = [Student(f"http://127.0.0.1:{port}", *line.split(",")) for line in lines]
                start = time.perf_counter()
                with ThreadPoolExecutor(count) as pool:
                    list(pool.map(Student.log_in, students))
                    logged_in = time.perf_counter()
                    idle = memory(lab, names)
                    outputs = list(pool.map(lambda student: student.run(CELL), students))
                done = time.perf_counter()
                working = memory(lab, names)
        finally:
            lab("class", "down", check=False)
            for home in lab.volume.glob("class/homes/*/"):
                subprocess.run(["umount", home], check=False, capture_output=True)
    wrong = [output for output in outputs if not re.fullmatch(r"\(\d+, \d+\)\n", output)]
    print(f"{count} students; load {os.getloadavg()[0]:.1f}; outputs {sorted(set(outputs))}")
    figure("class_logins_s", logged_in - start, "s", "none")
    figure("class_notebooks_s", done - logged_in, "s", "none")
    figure("class_server_idle_mb", idle, "MB", "none")
    figure("class_server_with_kernel_mb", working, "MB", "none")
    figure("class_errors", float(len(wrong)), "1", "<=0", quick=True)


def memory(lab: Lab, names: list[str]) -> float:
    """Return the mean memory of the students' processes in MB, as their control groups count it."""
    rows = [line.split() for line in lab("class", "list").splitlines()]
    values = [float(row[3]) for row in rows if row[0] in names and row[3] != "0"]
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
