"""A docker command for tests of arguments: it writes down what it is asked, and plays an engine that obeys.

The engine is a thread of the tests; the command says its words and variables there and prints the answer, without a
Python of its own to start. In the engine's folder, calls.jsonl gets one line per call, containers.json holds the
containers there are, images.json the images. Real engines are for tests/docker.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

VALUED = ("--file", "--project-directory", "--progress", "--name", "--label", "--env", "--volume")
# What is said and answered ends with a null character each: how many words, the words, how many variables, and these by
# name and value; then exit code, output and errors.
COMMAND = """#!/bin/bash
exec 3<> /dev/tcp/127.0.0.1/{port}
names=(${{!VLALAB_*}} ${{!COMPOSE_*}})
printf '%s\\0' $# "$@" ${{#names[@]}} >&3
for name in "${{names[@]}}"; do printf '%s\\0' "$name" "${{!name}}" >&3; done
IFS= read -r -d '' code <&3; IFS= read -r -d '' out <&3; IFS= read -r -d '' err <&3
printf %s "$out"; printf %s "$err" >&2
exit "${{code:-125}}"
"""
Answer = tuple[int, str, str]  # exit code, output, errors


@contextmanager
def serving(directory: Path, command: Path) -> Iterator[None]:
    """Plays the engine of a folder while it lasts, and writes the docker command that asks it."""

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            words = [self.said() for _ in range(int(self.said()))]
            variables = dict([(self.said(), self.said()) for _ in range(int(self.said()))])
            with one_at_a_time:  # as an engine does what it is asked
                answer = Call(directory, words, variables).answer()
            self.wfile.write("".join(f"{part}\0" for part in answer).encode())

        def said(self) -> str:
            text = bytearray()
            while (byte := self.rfile.read(1)) != b"\0":
                text += byte
                if not byte:
                    raise EOFError("the command has ended while it spoke")
            return text.decode()

    one_at_a_time = threading.Lock()
    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        command.write_text(COMMAND.format(port=server.server_address[1]))
        command.chmod(0o755)
        try:
            yield
        finally:
            server.shutdown()


@dataclass
class Call:
    """One call of the command: its words, and those of its variables that begin as the lab's and Compose's do."""

    directory: Path
    words: list[str]
    variables: dict[str, str]

    def load(self, name: str) -> list:
        path = self.directory / name
        return json.loads(path.read_text()) if path.exists() else []

    def save(self, name: str, value: list) -> None:
        (self.directory / name).write_text(json.dumps(value))

    def record(self) -> None:
        variables = {name: value for name, value in self.variables.items() if name.startswith("VLALAB_")}
        with (self.directory / "calls.jsonl").open("a") as calls:
            calls.write(json.dumps({"words": self.words, "variables": variables}) + "\n")

    def project(self) -> str:
        return self.variables.get("COMPOSE_PROJECT_NAME") or self.variables.get("VLALAB_PROJECT") or "vla-lab"

    def listed(self) -> list[str]:
        """Plays `ps`, with its filters by label."""
        wanted = [word.removeprefix("label=").split("=", 1) for word in self.words if word.startswith("label=")]
        there = [(one["Id"], one["Config"]["Labels"]) for one in self.load("containers.json")]
        return [id_ for id_, labels in there if all(labels.get(name) == value for name, value in wanted)]

    def container(self, service: str, name: str, attached: bool, labels: dict[str, str]) -> dict:
        port = {"oracle": 8001, "random": 8002, "openvla": 8000}.get(service, 7000)
        port = int(self.variables.get(f"VLALAB_{service.upper()}_PORT", port))
        bindings = {} if attached else {f"{port}/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(port)}]}
        return {
            "Id": f"id-{name}", "Name": f"/{name}", "Image": "sha256:1", "RestartCount": 0,
            "Config": {
                "Labels": {
                    "com.docker.compose.project": self.project(), "com.docker.compose.service": service,
                    "com.docker.compose.oneoff": str(attached), "vla-lab.role": "policy", **labels,
                },
                "Healthcheck": {"Test": ["CMD", "python", "-m", "check", f"http://127.0.0.1:{port}/readyz"]},
            },
            "State": {
                "Status": "running", "ExitCode": 0, "Pid": 0, "Health": {"Status": "healthy"},
                "StartedAt": "2026-01-02T03:04:05.678901234Z",
            },
            "HostConfig": {"PortBindings": bindings, "DeviceRequests": None},
        }  # fmt: skip

    def compose(self) -> int:
        """Plays `up`, and `run` as if the command ended well."""
        plain, flags, labels = [], {}, {}
        rest = iter(self.words[1:])
        for word in rest:
            if word in VALUED:
                flags[word] = next(rest)
                if word == "--label":
                    labels.update([flags[word].split("=", 1)])
            elif not word.startswith("-"):
                plain.append(word)
        if plain[0] == "up" or "--detach" in self.words:
            attached = plain[0] == "run"
            name = flags.get("--name", f"{self.project()}-{plain[1]}-1")
            made = self.container(plain[1], name, attached, labels)
            there = [one for one in self.load("containers.json") if one["Name"] != made["Name"]]
            self.save("containers.json", [*there, made])
        exit_code = self.directory / "exit"
        return int(exit_code.read_text()) if exit_code.exists() else 0

    def remove(self) -> None:
        there = self.load("containers.json")
        self.save("containers.json", [one for one in there if one["Name"].lstrip("/") not in self.words])

    def answer(self) -> Answer:
        """Writes the call down and does what it asks."""
        self.record()
        words = self.words
        if words[0] == "compose":
            return self.compose(), "", ""
        if words[0] == "version":
            return 0, said({"Server": {"Version": "26.1.5"}}), ""
        if words[0] == "info":
            return 0, said({"SecurityOptions": self.load("security.json"), "Runtimes": {"runc": {}}}), ""
        if words[0] == "ps":
            return 0, "\n".join(self.listed()) + "\n", ""
        if words[0] == "inspect":
            return 0, said([one for one in self.load("containers.json") if one["Id"] in words]), ""
        if words[:2] == ["image", "inspect"]:
            found = [one for one in self.load("images.json") if set(one["RepoTags"]) & set(words)]
            lacks = len(found) < len(words) - 2
            return int(lacks), said(found), "Error: No such image\n" if lacks else ""
        if words[0] == "rm":
            self.remove()
        return 0, "the last words\n" if words[0] == "logs" else "", ""


def said(value: object) -> str:
    """Returns a value as the engine prints it."""
    return json.dumps(value) + "\n"
