"""What the lab asks of Ray: `check` its token, `nodes`, `place`, which has workers join an evaluator's run, `serve`.

`serve` starts policies and says where they are, a line for each. stdin: {"address", "node", "url", "token", "workers"},
for policies also {"replicas", "command", "gpu"}; stdout: lines for a person, or one of JSON (`nodes`). Exit codes:
0 done, 1 no machine can take part, no policy is left, 3 Ray is not there, as the last line says.
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

import ray
from ray._raylet import GcsClient
from ray.exceptions import RayError

MAX_MESSAGE = 600  # characters of what a machine said last
EXIT_REJECTED = 2  # the exit code of `eval --join` where this machine must not take part
MAX_WORKERS = 1000  # workers that wait for room, where nobody said how many
TRIES = 3  # of a machine on which workers keep ending
GIB = 2**30
OUT = os.fdopen(os.dup(1), "w")  # Ray prints news of its own for people who know Ray
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
ANSWER_S = 5.0


def start_lab(arguments: list[str], token: str | None, **variables: str) -> subprocess.Popen:
    """Start a command of the lab of the machine that Ray has chosen. It ends with this process: PR_SET_PDEATHSIG.

    This function and its callers are sent to the machine; all else there is the machine's own.
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
    """Join a run; return how that ended. A worker that is ended gives its episode back."""
    address = ray.util.get_node_ip_address()
    identity = {"node": ray.get_runtime_context().get_node_id(), "host": f"{os.uname().nodename} ({address})"}
    try:
        process = start_lab(["eval", "--join", url, "--workers", "1"], token)
    except RuntimeError as error:
        return {**identity, "code": EXIT_REJECTED, "message": str(error)}
    output, _ = process.communicate()
    return {**identity, "code": process.returncode, "message": output.strip()[-MAX_MESSAGE:]}


class Policy:
    """An actor: a policy of the machine's own lab. It ends with its process."""

    def start(self, arguments: list[str], token: str | None) -> str:
        """Return where the policy answers, once it is ready. RuntimeError, with what was printed, where it ended."""
        address, output = ray.util.get_node_ip_address(), ""
        self.process = start_lab(arguments, token, VLALAB_BIND=address)
        for line in self.process.stdout:
            output = (output + line)[-MAX_MESSAGE:]
            if line.startswith(f"{arguments[1]} http"):
                return line.split()[1]
        raise RuntimeError(f"{os.uname().nodename} ({address}): {output.strip()}")

    def wait(self) -> None:
        """Return when it has ended."""
        self.process.communicate()


def serve(request: dict) -> int:
    """Has Ray start policies and says where they are; returns once none is left."""
    actor_class = ray.remote(
        num_cpus=1, num_gpus=int(request["gpu"] and ray.cluster_resources().get("GPU", 0) > 0), max_restarts=0
    )(Policy)
    actors = [actor_class.options(scheduling_strategy="SPREAD").remote() for _ in range(request["replicas"])]
    starting = [actor.start.remote(request["command"], request["token"]) for actor in actors]
    urls = []
    for reference in starting:
        try:
            urls.append(ray.get(reference))
        except RayError as error:
            cause = getattr(error, "cause", None)
            print_line(f"a policy did not start: {cause or str(error).splitlines()[0]}")
            return 1
        print_line(urls[-1])
    ends = {actor.wait.remote(): url for actor, url in zip(actors, urls, strict=True)}
    while ends:
        for reference in ray.wait(list(ends), num_returns=1)[0]:
            print_line(f"the policy at {ends.pop(reference)} has ended; {len(ends)} of {len(urls)} left")
    return 1


def nodes() -> list[dict]:
    """Returns the machines of the cluster, the head first: name, address, whether alive, and what they offer."""
    machines = [
        {
            "node": node["NodeID"],
            "host": node["NodeManagerHostname"],
            "address": node["NodeManagerAddress"],
            "alive": node["Alive"],
            "cores": node["Resources"].get("CPU", 0),
            "gpus": node["Resources"].get("GPU", 0),
            "memory_gb": round(node["Resources"].get("memory", 0) / 1e9, 1),
            "is_head": "node:__internal_head__" in node["Resources"],
        }
        for node in ray.nodes()
    ]
    return sorted(machines, key=lambda machine: (not machine["is_head"], machine["host"], machine["address"]))


def run_at(request: dict) -> dict:
    """Returns what an evaluator says of its run, once it listens: it waits for its policy first."""
    headers = {"Authorization": f"Bearer {request['token']}"} if request["token"] else {}
    http_request = urllib.request.Request(f"{request['url']}/v1/run", headers=headers)
    while True:
        try:
            with urllib.request.urlopen(http_request, timeout=ANSWER_S) as answer:
                return json.load(answer)
        except OSError:
            time.sleep(0.2)


class RayPlacement:
    """The workers of one run: asked for, placed by Ray, asked for again where one ended before its time."""

    def __init__(self, request: dict, run: dict):
        self.request, self.excluded, self.ends = request, {}, {}
        self.task = ray.remote(num_cpus=1, memory=int(run["worker_gb"] * GIB), max_retries=-1)(work)
        count = min(request["workers"] or MAX_WORKERS, max(1, run["episodes"]))
        self.waiting = [self.submit() for _ in range(count)]

    def submit(self):
        """Asks Ray for one more worker, on no machine that cannot take part."""
        label_options = (
            {"label_selector": {"ray.io/node-id": f"!in({','.join(self.excluded)})"}} if self.excluded else {}
        )
        return self.task.options(name="worker", **label_options).remote(self.request["url"], self.request["token"])

    def run(self) -> int:
        """Looks after the workers until none is wanted any more; returns the exit code."""
        while self.waiting:
            done, self.waiting = ray.wait(self.waiting, num_returns=1, timeout=1.0)
            for reference in done:
                try:
                    needs_replacement = self.is_to_replace(ray.get(reference))
                except RayError as error:
                    print_line(f"a worker was lost ({str(error).splitlines()[0]}); asking for another")
                    needs_replacement = True
                if needs_replacement:
                    self.waiting.append(self.submit())
            if self.excluded and not [
                node for node in nodes() if node["alive"] and node["cores"] and node["node"] not in self.excluded
            ]:
                print_line("no machine of the cluster can take part")
                return 1
        return 0

    def is_to_replace(self, ended: dict) -> bool:
        """Returns whether another worker is to take the place of one that ended before the work did."""
        node, code = ended["node"], ended["code"]
        if code == 0:
            return False
        self.ends[node] = self.ends.get(node, 0) + 1
        if (code == EXIT_REJECTED or self.ends[node] >= TRIES) and node not in self.excluded:
            self.excluded[node] = ended["message"]
            print_line(f"{ended['host']} takes no part: {ended['message'].rpartition('error: ')[2]}")
        time.sleep(0.5)
        return True


def print_line(text: str) -> None:
    """Prints what a person is to read; one line each."""
    print(" ".join(text.split())[:MAX_MESSAGE], file=OUT, flush=True)


def main(command: str) -> int:
    """Does what the first word says; returns the exit code."""
    request = json.load(sys.stdin)
    try:
        GcsClient(address=request["address"])  # a wrong token is told at once: what follows tries for long
        if command == "check":
            return 0
        node_options = {"_node_ip_address": request["node"]} if request.get("node") else {}
        cluster = ray.init(
            address=request["address"],
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            namespace="vla-lab",
            **node_options,
        )
        if command == "nodes":
            print(json.dumps({"nodes": nodes(), "dashboard": cluster.dashboard_url or ""}), file=OUT)
            return 0
        if command == "serve":
            return serve(request)
        return RayPlacement(request, run_at(request)).run()
    except (RayError, ConnectionError, RuntimeError, ValueError) as error:
        print_line(str(error) or type(error).__name__)
        return 3


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.exit(main(sys.argv[1]))
