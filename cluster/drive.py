"""The lab's client of Ray. Commands: `check` the token, list `nodes`, `place` workers for a run, `serve` policies.

`serve` prints the URL of each policy. stdin: {"address", "node", "url", "token", "workers"}, for policies also
{"replicas", "command", "gpu"}. stdout: messages, or one line of JSON (`nodes`). Exit codes: 0 done; 1 no machine can
join, or no policy is left; 3 Ray is not available (the last line has the reason).
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter

import ray
from ray._raylet import GcsClient
from ray.exceptions import RayError

MAX_MESSAGE = 600  # characters of a machine's last output
EXIT_REJECTED = 2  # exit code of `eval --join` if this machine must not join
MAX_WORKERS = 1000  # queued workers, if the request names no number
TRIES = 3  # failures of workers before a machine is excluded
GIB = 2**30
OUT = os.fdopen(os.dup(1), "w")  # Ray's own messages on stdout are dropped
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
ANSWER_S = 5.0


def start_lab(arguments: list[str], token: str | None, **variables: str) -> subprocess.Popen:
    """Run a command of the lab on the machine that Ray selected. It ends with this process: PR_SET_PDEATHSIG.

    Ray sends this function and its callers to the machine, which uses its own lab.
    """
    lab = os.environ.get("VLALAB_LAB")
    if not lab:
        raise RuntimeError("its Ray was not started by ./lab cluster; set VLALAB_LAB to its ./lab where Ray is started")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("RAY_") and name != "PYTHONPATH"
    }
    variables |= {"VLALAB_TOKEN": token} if token else {}
    return subprocess.Popen(
        [lab, *arguments], env={**environment, **variables}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
        preexec_fn=lambda: ctypes.CDLL(None).prctl(1, int(signal.SIGTERM)),
    )  # fmt: skip


def work(url: str, token: str | None) -> dict:
    """Join a run; return node, exit code and message. A terminated worker returns its episode."""
    address = ray.util.get_node_ip_address()
    identity = {"node": ray.get_runtime_context().get_node_id(), "host": f"{os.uname().nodename} ({address})"}
    try:
        process = start_lab(["eval", "--join", url, "--workers", "1"], token)
    except RuntimeError as error:
        return {**identity, "code": EXIT_REJECTED, "message": str(error)}
    output, _ = process.communicate()
    return {**identity, "code": process.returncode, "message": output.strip()[-MAX_MESSAGE:]}


class PolicyActor:
    """A Ray actor that runs a policy of the machine's own lab. It ends with its process."""

    def start(self, arguments: list[str], token: str | None) -> str:
        """Start the policy and return its URL once it is ready. Raises RuntimeError, with its output, if it ends."""
        address, output = ray.util.get_node_ip_address(), ""
        self.process = start_lab(arguments, token, VLALAB_BIND=address)
        for line in self.process.stdout:
            output = (output + line)[-MAX_MESSAGE:]
            if line.startswith(f"{arguments[1]} http"):
                return line.split()[1]
        raise RuntimeError(f"{os.uname().nodename} ({address}): {output.strip()}")

    def wait(self) -> None:
        """Wait until the policy ends."""
        self.process.communicate()


def serve(request: dict) -> int:
    """Start policies through Ray and print their URLs; return 1 once none is left."""
    gpus = int(request["gpu"] and ray.cluster_resources().get("GPU", 0) > 0)
    actor_class = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(PolicyActor)
    actors = [actor_class.options(scheduling_strategy="SPREAD").remote() for _ in range(request["replicas"])]
    starting = [actor.start.remote(request["command"], request["token"]) for actor in actors]
    urls = []
    for reference in starting:
        try:
            urls.append(ray.get(reference))
        except RayError as error:
            print_line(f"a policy did not start: {getattr(error, 'cause', None) or str(error).splitlines()[0]}")
            return 1
        print_line(urls[-1])
    ends = {actor.wait.remote(): url for actor, url in zip(actors, urls, strict=True)}
    while ends:
        for reference in ray.wait(list(ends), num_returns=1)[0]:
            print_line(f"the policy at {ends.pop(reference)} has ended; {len(ends)} of {len(urls)} left")
    return 1


def nodes() -> list[dict]:
    """Return the machines of the cluster, the head first: name, address, whether alive, and resources."""
    machines = [
        {
            "node": node["NodeID"], "host": node["NodeManagerHostname"], "address": node["NodeManagerAddress"],
            "alive": node["Alive"], "cores": node["Resources"].get("CPU", 0), "gpus": node["Resources"].get("GPU", 0),
            "memory_gb": round(node["Resources"].get("memory", 0) / 1e9, 1),
            "is_head": "node:__internal_head__" in node["Resources"],
        }
        for node in ray.nodes()
    ]  # fmt: skip
    return sorted(machines, key=lambda machine: (not machine["is_head"], machine["host"], machine["address"]))


def place(request: dict) -> int:
    """Submit the workers of a run, which Ray places, and replace those that end early; return the exit code.

    The evaluator describes its run once it listens, which is after its policy is ready.
    """
    headers = {"Authorization": f"Bearer {request['token']}"} if request["token"] else {}
    http_request = urllib.request.Request(f"{request['url']}/v1/run", headers=headers)
    run = None
    while run is None:
        try:
            with urllib.request.urlopen(http_request, timeout=ANSWER_S) as answer:
                run = json.load(answer)
        except OSError:
            time.sleep(0.2)
    task = ray.remote(num_cpus=1, memory=int(run["worker_gb"] * GIB), max_retries=-1)(work)
    excluded: set[str] = set()  # machines that cannot join, or whose workers failed TRIES times
    failures: Counter[str] = Counter()

    def submit():
        selector = {"label_selector": {"ray.io/node-id": f"!in({','.join(excluded)})"}} if excluded else {}
        return task.options(name="worker", **selector).remote(request["url"], request["token"])

    waiting = [submit() for _ in range(min(request["workers"] or MAX_WORKERS, max(1, run["episodes"])))]
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1, timeout=1.0)
        for reference in done:
            try:
                ended = ray.get(reference)
            except RayError as error:
                print_line(f"a worker was lost ({str(error).splitlines()[0]}); starting another")
                waiting.append(submit())
                continue
            node, code = ended["node"], ended["code"]
            if code == 0:
                continue
            failures[node] += 1
            if (code == EXIT_REJECTED or failures[node] >= TRIES) and node not in excluded:
                excluded.add(node)
                print_line(f"{ended['host']} cannot join: {ended['message'].rpartition('error: ')[2]}")
            time.sleep(0.5)
            waiting.append(submit())
        if excluded and not [n for n in nodes() if n["alive"] and n["cores"] and n["node"] not in excluded]:
            print_line("no machine of the cluster can join")
            return 1
    return 0


def print_line(text: str) -> None:
    """Print a message as one line."""
    print(" ".join(text.split())[:MAX_MESSAGE], file=OUT, flush=True)


def main(command: str) -> int:
    """Run a command; return the exit code."""
    request = json.load(sys.stdin)
    try:
        GcsClient(address=request["address"])  # fails at once for a wrong token; ray.init would retry for long
        if command == "check":
            return 0
        node_options = {"_node_ip_address": request["node"]} if request.get("node") else {}
        cluster = ray.init(
            address=request["address"], log_to_driver=False, logging_level=logging.CRITICAL, namespace="vla-lab",
            **node_options,
        )  # fmt: skip
        if command == "nodes":
            print(json.dumps({"nodes": nodes(), "dashboard": cluster.dashboard_url or ""}), file=OUT)
            return 0
        if command == "serve":
            return serve(request)
        return place(request)
    except (RayError, ConnectionError, RuntimeError, ValueError) as error:
        print_line(str(error) or type(error).__name__)
        return 3


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.exit(main(sys.argv[1]))
