"""A docker command for tests of arguments: it writes down what it is asked, and plays an engine that obeys.

$RECORDING_DOCKER is its folder: calls.jsonl gets one line per call, containers.json holds the containers there are,
images.json the images. Real engines are for tests/docker.
"""

import fcntl
import json
import os
import sys
from pathlib import Path

FOLDER = Path(os.environ["RECORDING_DOCKER"])
VALUED = ("--file", "--project-directory", "--progress", "--name", "--label", "--env", "--volume")


def load(name: str) -> list:
    path = FOLDER / name
    return json.loads(path.read_text()) if path.exists() else []


def save(name: str, value: list) -> None:
    (FOLDER / name).write_text(json.dumps(value))


def record(words: list[str]) -> None:
    variables = {name: value for name, value in os.environ.items() if name.startswith("VLALAB_")}
    with (FOLDER / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps({"words": words, "variables": variables}) + "\n")


def project() -> str:
    return os.environ.get("COMPOSE_PROJECT_NAME") or os.environ.get("VLALAB_PROJECT") or "vla-lab"


def listed(words: list[str]) -> list[str]:
    """Plays `ps`, with its filters by label."""
    wanted = [word.removeprefix("label=").split("=", 1) for word in words if word.startswith("label=")]
    there = [(one["Id"], one["Config"]["Labels"]) for one in load("containers.json")]
    return [id_ for id_, labels in there if all(labels.get(name) == value for name, value in wanted)]


def container(service: str, name: str, attached: bool, labels: dict[str, str]) -> dict:
    port = {"oracle": 8001, "random": 8002, "openvla": 8000}.get(service, 7000)
    port = int(os.environ.get(f"VLALAB_{service.upper()}_PORT", port))
    bindings = {} if attached else {f"{port}/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(port)}]}
    return {
        "Id": f"id-{name}", "Name": f"/{name}", "Image": "sha256:1", "RestartCount": 0,
        "Config": {
            "Labels": {
                "com.docker.compose.project": project(), "com.docker.compose.service": service,
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


def compose(words: list[str]) -> int:
    """Plays `up`, and `run` as if the command ended well."""
    plain, flags, labels = [], {}, {}
    rest = iter(words)
    for word in rest:
        if word in VALUED:
            flags[word] = next(rest)
            if word == "--label":
                labels.update([flags[word].split("=", 1)])
        elif not word.startswith("-"):
            plain.append(word)
    if plain[0] == "up" or "--detach" in words:
        attached = plain[0] == "run"
        made = container(plain[1], flags.get("--name", f"{project()}-{plain[1]}-1"), attached, labels)
        there = [one for one in load("containers.json") if one["Name"] != made["Name"]]
        save("containers.json", [*there, made])
    return int((FOLDER / "exit").read_text()) if (FOLDER / "exit").exists() else 0


def remove(names: list[str]) -> int:
    there = load("containers.json")
    save("containers.json", [one for one in there if one["Name"].lstrip("/") not in names])
    return 0


def main(words: list[str]) -> int:
    lock = (FOLDER / "lock").open("a")
    fcntl.flock(lock, fcntl.LOCK_EX)  # an engine does one thing after the other; the lock ends with the process
    record(words)
    if words[0] == "compose":
        return compose(words[1:])
    if words[0] == "version":
        print(json.dumps({"Server": {"Version": "26.1.5"}}))
    elif words[0] == "info":
        print(json.dumps({"SecurityOptions": load("security.json"), "Runtimes": {"runc": {}}}))
    elif words[0] == "ps":
        print("\n".join(listed(words)))
    elif words[0] == "inspect":
        print(json.dumps([one for one in load("containers.json") if one["Id"] in words]))
    elif words[:2] == ["image", "inspect"]:
        found = [one for one in load("images.json") if set(one["RepoTags"]) & set(words)]
        print(json.dumps(found))
        if len(found) < len(words) - 2:
            print("Error: No such image", file=sys.stderr)
            return 1
    elif words[0] == "rm":
        return remove(words)
    elif words[0] == "logs":
        print("the last words")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
