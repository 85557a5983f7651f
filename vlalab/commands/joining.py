"""`eval --listen` and `eval --join`: one run on several machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from vlalab.commands import evaluation, programs
from vlalab.description import compose, manifests, ports
from vlalab.host.console import LabError

MINE = ("workers", "assets")  # the evaluator's flags that are a machine's own; the others are the run's


def check_address(label: str, asked: str) -> str:
    """Returns what --listen said. Raises LabError for what is no host:port."""
    host, _, port = asked.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise LabError(f"{label} {asked} is no address; expected host:port, for example 0.0.0.0:8100")
    return asked


def check_url(label: str, asked: str) -> str:
    """Returns what --join said. Raises LabError for what is no URL."""
    if "://" not in asked:
        raise LabError(f"{label} {asked} is no address; expected what the evaluator said, like http://host:8100")
    return evaluation.check_policy(label, asked)


def runtime_to_listen(runtime: str, suites: Sequence[str]) -> str:
    """Returns the runtime of an evaluator that others join. Raises LabError for containers, and several suites."""
    if len(suites) > 1:
        raise LabError(f"--listen goes with one suite; {', '.join(suites)} are {len(suites)}: one command for each")
    if runtime == "docker":
        raise LabError("--listen works with --runtime local: a port of this task's container is published nowhere")
    return "local"


def join(url: str, policy: str, given: Mapping[str, object], runtime: str, dry_run: bool, gpu: str | None) -> int:
    """Works on another machine's run; returns the exit code. `given`: the evaluator's flags."""
    theirs = [name for name, value in given.items() if name not in MINE and value not in (None, False)]
    if theirs:
        raise LabError(f"--join takes the run as it is; leave --{theirs[0].replace('_', '-')} out")
    if policy != "auto" and "://" not in policy:
        raise LabError(f"--join --policy {policy}: expected the address at which the run's policy is reached from here")
    job = manifests.default_job()
    words = ["join", url, *(["--policy-url", policy] if policy != "auto" else [])]
    words += [word for name in MINE if given[name] is not None for word in (f"--{name}", str(given[name]))]
    here = ports.is_loopback(urlsplit(url).hostname or "")
    chosen = "local" if here and runtime == "auto" else runtime
    return programs.run_module(job, compose.read()[job].command[2], words, chosen, dry_run, gpu)
