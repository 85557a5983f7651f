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
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from vlalab.commands import cluster
from vlalab.commands.cluster import Member
from vlalab.description import compose, ports
from vlalab.host.console import LabError, say
from vlalab.host.processes import die_with_parent

END_S = 10.0


@dataclass
class Placing:
    """The workers of evaluations on a cluster, and where these listen."""

    here: Member
    host: str
    port: int
    workers: int | None
    failed: bool = False  # no machine takes part: the evaluation was stopped, by nobody's hand
    _over: threading.Event = field(default_factory=threading.Event)

    @property
    def flags(self) -> dict[str, object]:
        """The evaluator's flags: it listens, and has no worker of its own."""
        return {"listen": f"{self.host}:{self.port}", "workers": 0}

    def told(self) -> str:
        """Returns what drive.py is told."""
        return json.dumps(
            {
                "address": self.here.head,
                "node": self.here.node,
                "url": f"http://{self.host}:{self.port}",
                "token": compose.environment_variables().get("VLALAB_TOKEN") or None,
                "workers": self.workers,
            }
        )

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Has Ray place workers while it lasts; where no machine can take part the evaluation is ended as by Ctrl-C."""
        self._over.clear()
        with subprocess.Popen(
            cluster.command("place"), env=cluster.variables(self.here.is_closed), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
            preexec_fn=die_with_parent(),
        ) as process:  # fmt: skip
            process.stdin.write(self.told())
            process.stdin.close()
            reader = threading.Thread(target=self._read, args=(process,), daemon=True)
            reader.start()
            try:
                yield
            finally:
                self._over.set()
                process.terminate()
                try:
                    process.wait(END_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                reader.join(END_S)

    def _read(self, process: subprocess.Popen[str]) -> None:
        """Passes on what drive.py says; where it ends before its time, so does the evaluation."""
        for line in process.stdout:
            say(f"cluster: {cluster.in_words(line.strip())}")
        if process.wait() != 0 and not self._over.is_set():
            self.failed = True
            os.kill(os.getpid(), signal.SIGINT)


def prepare(runtime: str, asked: str | bool, policy: str, evaluators: Mapping[str, object]) -> Placing:
    """Returns what places the workers of an evaluation.

    asked: the address of the cluster's head; True: of the one that this machine is in. policy, evaluators: what the
    other flags said. Raises LabError where Ray gives no answer, this machine is no part of the cluster, or others could
    not reach it.
    """
    if evaluators["listen"]:
        raise LabError("--cluster has the evaluator listen where the cluster reaches it; leave --listen out")
    if runtime == "docker":
        raise LabError("--cluster works with --runtime local: a port of this task's container is published nowhere")
    here, workers = cluster.joined(None if asked is True else str(asked)), evaluators["workers"]
    found = [one for one in cluster.nodes(here) if one["alive"]]
    host = here.node or cluster.towards(here.head)
    if host not in {one["address"] for one in found}:
        raise LabError(
            f"this machine ({host}) is no part of the cluster at {here.head}: ./lab cluster join {here.head}"
        )
    if not ports.is_loopback(host):
        _require_reachable(host, policy)
    cores = int(sum(one["cores"] for one in found))
    say(f"cluster at {here.head}: {len(found)} machine{'s' * (len(found) > 1)}, {cores} core{'s' * (cores != 1)}")
    if workers and workers > cores:
        say(f"some of {workers} workers wait for room, or for machines that join")
    return Placing(here, host, ports.free(host), workers)


def _require_reachable(host: str, policy: str) -> None:
    """Sees to it that the others reach what this evaluation starts: at this machine's address, with a token."""
    if not compose.environment_variables().get("VLALAB_TOKEN"):
        raise LabError("machines of a cluster ask this one over the network; set VLALAB_TOKEN (8 characters or more)")
    if "://" in policy and ports.is_loopback(urlsplit(policy).hostname or ""):
        raise LabError(
            f"--policy {policy} is this machine's alone; serve it at an address that the others reach: "
            f"VLALAB_BIND={host} ./lab up NAME, and give http://{host}:PORT"
        )
    os.environ.setdefault("VLALAB_BIND", host)  # for a policy that is started for this evaluation


def check(label: str, asked: str) -> str:
    """Returns what --cluster said. Raises LabError for what is no address."""
    return cluster.read_head(asked)
