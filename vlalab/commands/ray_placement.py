"""`eval --cluster`: an evaluator that listens, and workers that Ray places on a cluster's machines to join its run.

cluster/drive.py runs next to the evaluator and asks Ray for them; each is `./lab eval --join` of its own machine.
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
from typing import Any
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

    membership: Member
    host: str
    port: int
    workers: int | None
    runtime: str = "local"  # of the evaluator; each machine that joins has its own
    replicas: int = 0  # of the policy, which Ray places too
    stop_reason: str = ""  # why the evaluation was stopped: no machine takes part, no policy is left

    @property
    def flags(self) -> dict[str, object]:
        """The evaluator's flags: it listens, and has no worker of its own."""
        return {"listen": f"{self.host}:{self.port}", "workers": 0}

    @contextmanager
    def policies(self, service: str, suite: str | None) -> Iterator[str]:
        """Have Ray place policies while it lasts; yield their addresses, separated by commas, once all are ready.

        Raises LabError for one that does not get ready. Where all have ended the evaluation is ended as by Ctrl-C.
        """
        model = manifests.models().get(service)
        arguments = ["up", service, "--stay", *(["--suite", suite] if model and suite in model.checkpoints else [])]
        request = {"replicas": self.replicas, "command": arguments, "gpu": service in compose.gpu_services()}
        with self._driver("serve", request) as (process, follow):
            assert process.stdout
            urls, last = list[str](), ""
            with status(f"starting {service} × {self.replicas} on the cluster"):
                for line in process.stdout:
                    if line.startswith("http"):
                        urls.append(line.strip())
                    else:
                        last = cluster.explain_output(line.strip())
                    if len(urls) == self.replicas:
                        break
                else:
                    raise LabError(f"the cluster started no {service}; it said: {last or 'nothing'}")
            follow.start()
            say(f"cluster: {service} at {' and '.join(urls)}")
            yield ",".join(urls)

    @contextmanager
    def run_alongside(self) -> Iterator[None]:
        """Have Ray place workers while it lasts; where none can take part the evaluation is ended as by Ctrl-C."""
        with self._driver("place", {}) as (_, follow):
            follow.start()
            yield
        follow.join(END_S)

    @contextmanager
    def _driver(
        self, action: str, request: Mapping[str, object]
    ) -> Iterator[tuple[subprocess.Popen[str], threading.Thread]]:
        """Run drive.py while it lasts; yield it, and a thread that prints its messages and ends the evaluation too."""
        over = threading.Event()
        url = f"http://{self.host}:{self.port}"
        connection = {
            "address": self.membership.head,
            "node": self.membership.node,
            "url": url,
            "token": compose.token(),
        }

        def follow() -> None:
            assert process.stdout
            message = ""
            for line in process.stdout:
                message = cluster.explain_output(line.strip())
                say(f"cluster: {message}")
            if process.wait() != 0 and not over.is_set():
                self.stop_reason = message or "Ray ended"
                os.kill(os.getpid(), signal.SIGINT)

        with subprocess.Popen(
            cluster.command(action), env=self.membership.variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, start_new_session=True, preexec_fn=die_with_parent(),
        ) as process:  # fmt: skip
            try:
                assert process.stdin
                json.dump({**connection, "workers": self.workers, **request}, process.stdin)
                process.stdin.close()
                yield process, threading.Thread(target=follow, daemon=True)
            finally:
                over.set()
                process.terminate()
                try:
                    process.wait(END_S)
                except subprocess.TimeoutExpired:
                    process.kill()


def prepare(
    runtime: str, head: str | bool, policy: str, evaluator_options: Mapping[str, Any], replicas: int
) -> RayPlacement:
    """Return what places the workers of an evaluation.

    head: the address of the cluster's head; True: of the one that this machine is in. policy, evaluators: the other
    flags. Raises LabError where Ray gives no answer, this machine is not part of the cluster, or others could not reach
    it.
    """
    if evaluator_options["listen"]:
        raise LabError("--cluster has the evaluator listen where the cluster reaches it; leave --listen out")
    membership, workers = cluster.find_membership(None if head is True else str(head)), evaluator_options["workers"]
    machines, dashboard = cluster.nodes(membership)
    host = membership.node or cluster.local_address_for(membership.head)
    if host not in {machine["address"] for machine in machines}:
        raise LabError(
            f"this machine ({host}) is no part of the cluster at {membership.head}: ./lab cluster join {membership.head}"
        )
    if not ports.is_loopback(host):
        _require_reachable(host, policy)
    elif runtime == "docker":
        raise LabError(f"a container does not reach {host}, which is this machine's alone; use --runtime local")
    cores = int(sum(machine["cores"] for machine in machines))
    many = f"{len(machines)} machine{'s' * (len(machines) > 1)}, {cores} core{'s' * (cores != 1)}"
    say(f"cluster at {membership.head}: {many}{cluster.dashboard_note(dashboard)}")
    if replicas and replicas >= cores:
        raise LabError(
            f"--replicas {replicas}: each takes a core, which leaves none of the cluster's {cores} for a worker; "
            "expected fewer, or have more machines join"
        )
    if workers and workers > cores - replicas:
        say(f"some of {workers} workers wait for room, or for machines that join")
    runs_in = "docker" if runtime == "docker" else "local"
    return RayPlacement(membership, host, ports.free(host), workers, runs_in, replicas)


def _require_reachable(host: str, policy: str) -> None:
    """Make sure that the others reach what this evaluation starts: at this machine's address, with a token."""
    if not compose.environment_variables().get("VLALAB_TOKEN"):
        raise LabError("machines of a cluster ask this one over the network; set VLALAB_TOKEN (8 characters or more)")
    for url in policy.split(",") if "://" in policy else []:
        if ports.is_loopback(urlsplit(url).hostname or ""):
            raise LabError(
                f"--policy {url} is this machine's alone; serve it at an address that the others reach: "
                f"VLALAB_BIND={host} ./lab up NAME, and give http://{host}:PORT"
            )
    os.environ.setdefault("VLALAB_BIND", host)  # for a policy that is started for this evaluation
