"""`eval --cluster`: Ray starts workers on a cluster's machines, which join the evaluator's run.

cluster/drive.py runs alongside the evaluator and schedules them with Ray; each runs `./lab eval --join`.
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
from vlalab.host.console import LabError, log_info, status
from vlalab.host.processes import die_with_parent

END_S = 10.0


@dataclass
class RayPlacement:
    """The placement of an evaluation's workers and policies on a cluster, and the evaluator's address."""

    membership: Member
    host: str
    port: int
    workers: int | None
    runtime: str = "local"  # of the evaluator; machines that join use their own
    replicas: int = 0  # of the policy, also placed by Ray
    stop_reason: str = ""  # set if the evaluation was stopped: no machine can join, no policy is left

    @property
    def options(self) -> dict[str, object]:
        """The evaluation's options: listen, and run no local workers."""
        return {"listen": f"{self.host}:{self.port}", "workers": 0, "runtime": self.runtime}

    @contextmanager
    def policies(self, service: str, suite: str | None) -> Iterator[str]:
        """Run policies on the cluster; yield their addresses, separated by commas, when all are ready.

        Raise LabError if one does not get ready. If all exit, interrupt the evaluation as Ctrl-C does.
        """
        model = manifests.models().get(service)
        suite_flags = ["--suite", suite] if model and suite in model.checkpoints else []
        arguments = ["up", service, "--foreground", *suite_flags]
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
                    raise LabError(f"{service} did not start on the cluster: {last or 'no output'}")
            follow.start()
            log_info(f"cluster: {service} at {' and '.join(urls)}")
            yield ",".join(urls)

    @contextmanager
    def run_alongside(self) -> Iterator[None]:
        """Run workers on the cluster; if none can join, interrupt the evaluation as Ctrl-C does."""
        with self._driver("place", {}) as (_, follow):
            follow.start()
            yield
        follow.join(END_S)

    @contextmanager
    def _driver(
        self, action: str, request: Mapping[str, object]
    ) -> Iterator[tuple[subprocess.Popen[str], threading.Thread]]:
        """Run drive.py; yield it and a thread that prints its messages and interrupts the evaluation if it fails."""
        over = threading.Event()
        connection = {
            "address": self.membership.head, "node": self.membership.node, "workers": self.workers,
            "url": f"http://{self.host}:{self.port}", "token": compose.token(),
        }  # fmt: skip

        def follow() -> None:
            assert process.stdout
            message = ""
            for line in process.stdout:
                message = cluster.explain_output(line.strip())
                log_info(f"cluster: {message}")
            if process.wait() != 0 and not over.is_set():
                self.stop_reason = message or "Ray exited"
                os.kill(os.getpid(), signal.SIGINT)

        with subprocess.Popen(
            cluster.command(action), env=self.membership.variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, start_new_session=True, preexec_fn=die_with_parent(),
        ) as process:  # fmt: skip
            try:
                assert process.stdin
                json.dump({**connection, **request}, process.stdin)
                process.stdin.close()
                yield process, threading.Thread(target=follow, daemon=True)
            finally:
                over.set()
                process.terminate()
                try:
                    process.wait(END_S)
                except subprocess.TimeoutExpired:
                    process.kill()


def prepare(head: str | bool, policy: str, options: Mapping[str, Any], replicas: int) -> RayPlacement:
    """Return the placement of an evaluation's workers.

    head: address of the cluster's head, True for this machine's cluster. policy, options: the other flags of `eval`.
    Raise LabError if Ray does not answer, this machine is not in the cluster, or other machines could not reach it.
    """
    if options["listen"]:
        raise LabError("--cluster sets the address to listen on; remove --listen")
    membership, workers = cluster.find_membership(None if head is True else str(head)), options["workers"]
    machines, dashboard = cluster.nodes(membership)
    host = membership.node or cluster.local_address_for(membership.head)
    if host not in {machine["address"] for machine in machines}:
        raise LabError(f"this machine ({host}) is not in the cluster; run ./lab cluster join {membership.head}")
    if not ports.is_loopback(host):
        if not compose.environment_variables().get("VLALAB_TOKEN"):
            raise LabError("the cluster's machines connect over the network; set VLALAB_TOKEN (8 characters or more)")
        for url in policy.split(",") if "://" in policy else []:
            if ports.is_loopback(urlsplit(url).hostname or ""):
                raise LabError(
                    f"other machines cannot reach --policy {url}; serve it on this machine's address with "
                    f"VLALAB_BIND={host} ./lab up NAME, and use http://{host}:PORT"
                )
        os.environ.setdefault("VLALAB_BIND", host)  # for a policy that this evaluation starts
    elif options["runtime"] == "docker":
        raise LabError(f"a container cannot reach {host}, this machine's loopback address; use --runtime local")
    cores = int(sum(machine["cores"] for machine in machines))
    many = f"{len(machines)} machine{'s' * (len(machines) > 1)}, {cores} core{'s' * (cores != 1)}"
    log_info(f"cluster at {membership.head}: {many}{cluster.dashboard_note(dashboard)}")
    if replicas and replicas >= cores:
        raise LabError(f"--replicas must be less than the cluster's {cores} cores, since workers need one")
    if workers and workers > cores - replicas:
        log_info(f"some of the {workers} workers wait for free cores, or for more machines to join")
    runs_in = "docker" if options["runtime"] == "docker" else "local"
    return RayPlacement(membership, host, ports.free(host), workers, runs_in, replicas)
