"""`eval --cluster`: an evaluator that listens, and workers that Ray places on a cluster's machines to join its run.

Beside the evaluator runs cluster/drive.py, which asks Ray for them; each is `./lab eval --join` of its own machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from vlalab.commands import cluster
from vlalab.commands.cluster import Member
from vlalab.description import compose, manifests, ports
from vlalab.host.console import LabError, say, status
from vlalab.host.processes import die_with_parent

END_S = 10.0


@dataclass
class RayPlacement:
    """The workers of evaluations on a cluster, and where these listen."""

    here: Member
    host: str
    port: int
    workers: int | None
    runtime: str = "local"  # of the evaluator; each machine that joins has its own
    replicas: int = 0  # of the policy, that Ray places, too
    why: str = ""  # the evaluation was stopped by nobody's hand: no machine takes part, no policy is left

    @property
    def flags(self) -> dict[str, object]:
        """The evaluator's flags: it listens, and has no worker of its own."""
        return {"listen": f"{self.host}:{self.port}", "workers": 0}

    def told(self) -> dict[str, object]:
        """Returns what drive.py is told."""
        return {
            "address": self.here.head,
            "node": self.here.node,
            "url": f"http://{self.host}:{self.port}",
            "token": compose.token(),
            "workers": self.workers,
        }

    @contextmanager
    def policies(self, service: str, suite: str | None) -> Iterator[str]:
        """Has Ray place policies while it lasts; yields where they are, with commas between them, once all are ready.

        Raises LabError for one that does not get ready. Where all have ended the evaluation is ended as by Ctrl-C.
        """
        model = manifests.models().get(service)
        words = ["up", service, "--stay", *(["--suite", suite] if model and suite in model.checkpoints else [])]
        told = {**self.told(), "replicas": self.replicas, "command": words, "gpu": service in compose.gpu_services()}
        over = threading.Event()
        with self._driving("serve", told, over) as process:
            urls, last = list[str](), ""
            with status(f"starting {service} × {self.replicas} on the cluster"):
                while len(urls) < self.replicas:
                    line = process.stdout.readline().strip()
                    if line.startswith("http"):
                        urls.append(line)
                    elif process.poll() is not None or not line:
                        raise LabError(f"the cluster started no {service}; it said: {last or 'nothing'}")
                    else:
                        last = cluster.in_words(line)
            threading.Thread(target=self._read, args=(process, over), daemon=True).start()
            say(f"cluster: {service} at {' and '.join(urls)}")
            yield ",".join(urls)

    @contextmanager
    def run_alongside(self) -> Iterator[None]:
        """Has Ray place workers while it lasts; where no machine can take part the evaluation is ended as by Ctrl-C."""
        over = threading.Event()
        with self._driving("place", self.told(), over) as process:
            reader = threading.Thread(target=self._read, args=(process, over), daemon=True)
            reader.start()
            yield
        reader.join(END_S)

    @contextmanager
    def _driving(self, what: str, told: Mapping[str, object], over: threading.Event) -> Iterator[subprocess.Popen[str]]:
        """Runs drive.py while it lasts. `over` is set before it is ended."""
        with subprocess.Popen(
            cluster.command(what), env=cluster.variables(self.here.is_closed), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
            preexec_fn=die_with_parent(),
        ) as process:  # fmt: skip
            try:
                process.stdin.write(json.dumps(told))
                process.stdin.close()
                yield process
            finally:
                over.set()
                process.terminate()
                try:
                    process.wait(END_S)
                except subprocess.TimeoutExpired:
                    process.kill()

    def _read(self, process: subprocess.Popen[str], over: threading.Event) -> None:
        """Passes on what drive.py says; where it ends before its time, so does the evaluation."""
        said = ""
        for line in process.stdout:
            said = cluster.in_words(line.strip())
            say(f"cluster: {said}")
        if process.wait() != 0 and not over.is_set():
            self.why = said or "Ray ended"
            os.kill(os.getpid(), signal.SIGINT)


def prepare(
    runtime: str, asked: str | bool, policy: str, evaluators: Mapping[str, object], replicas: int | None = None
) -> RayPlacement:
    """Returns what places the workers of an evaluation.

    asked: the address of the cluster's head; True: of the one that this machine is in. policy, evaluators: what the
    other flags said. Raises LabError where Ray gives no answer, this machine is no part of the cluster, or others could
    not reach it.
    """
    if evaluators["listen"]:
        raise LabError("--cluster has the evaluator listen where the cluster reaches it; leave --listen out")
    here, workers = cluster.joined(None if asked is True else str(asked)), evaluators["workers"]
    everything, dashboard = cluster.nodes(here)
    found = [one for one in everything if one["alive"]]
    host = here.node or cluster.towards(here.head)
    if host not in {one["address"] for one in found}:
        raise LabError(
            f"this machine ({host}) is no part of the cluster at {here.head}: ./lab cluster join {here.head}"
        )
    if not ports.is_loopback(host):
        _require_reachable(host, policy)
    elif runtime == "docker":
        raise LabError(f"a container does not reach {host}, which is this machine's alone; use --runtime local")
    cores = int(sum(one["cores"] for one in found))
    many = f"{len(found)} machine{'s' * (len(found) > 1)}, {cores} core{'s' * (cores != 1)}"
    say(f"cluster at {here.head}: {many}{cluster.page_of(dashboard)}")
    if replicas and replicas >= cores:
        raise LabError(
            f"--replicas {replicas}: each takes a core, which leaves none of the cluster's {cores} for a worker; "
            "expected fewer, or have more machines join"
        )
    if workers and workers > cores - (replicas or 0):
        say(f"some of {workers} workers wait for room, or for machines that join")
    runs_in = "docker" if runtime == "docker" else "local"
    return RayPlacement(here, host, ports.free(host), workers, runs_in, replicas or 0)


def _require_reachable(host: str, policy: str) -> None:
    """Sees to it that the others reach what this evaluation starts: at this machine's address, with a token."""
    if not compose.environment_variables().get("VLALAB_TOKEN"):
        raise LabError("machines of a cluster ask this one over the network; set VLALAB_TOKEN (8 characters or more)")
    urls = policy.split(",") if "://" in policy else []
    if near := [url for url in urls if ports.is_loopback(urlsplit(url).hostname or "")]:
        raise LabError(
            f"--policy {near[0]} is this machine's alone; serve it at an address that the others reach: "
            f"VLALAB_BIND={host} ./lab up NAME, and give http://{host}:PORT"
        )
    os.environ.setdefault("VLALAB_BIND", host)  # for a policy that is started for this evaluation


def check(label: str, asked: str) -> str:
    """Returns what --cluster said. Raises LabError for what is no address."""
    return cluster.read_head(asked)
