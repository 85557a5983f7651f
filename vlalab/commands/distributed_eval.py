"""`eval --listen` and `eval --join`: one run on several machines."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from vlalab.commands import evaluation, programs
from vlalab.description import compose, manifests, ports
from vlalab.host.console import LabError

MACHINE_FLAGS = ("workers", "assets")  # flags of the evaluator that each machine sets; the others belong to the run
ANSWER_S = 10.0


def runtime_to_listen(runtime: str, address: str, suites: Sequence[str]) -> str:
    """Return the runtime of an evaluator that other machines join at an address: local unless docker is requested.

    Raise LabError for several suites, and for an address that differs inside and outside containers.
    """
    if len(suites) > 1:
        raise LabError(f"--listen supports one suite, got {', '.join(suites)}; use one command for each")
    if runtime != "docker":
        return "local"
    host = address.rpartition(":")[0].strip("[]")
    if not ports.is_of_network(host):
        raise LabError(
            f"--listen {address} with --runtime docker must be this machine's IP address in its network, for example "
            "192.168.1.10:8100; with --runtime local it can be any address"
        )
    os.environ.setdefault("VLALAB_BIND", host)  # for a policy that this run starts
    return "docker"


def fetch_run(url: str) -> Mapping[str, Any]:
    """Return the description of the run of the evaluator at a URL; empty if it does not answer."""
    import httpx  # slow import: 0.1 s

    token = compose.token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        # No redirects: the token is for this URL only.
        with httpx.Client(timeout=ANSWER_S, trust_env=False) as client:
            answer = client.get(f"{url.rstrip('/')}/v1/run", headers=headers).raise_for_status().json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):  # the joining program retries and reports the error
        answer = {}
    return answer if isinstance(answer, dict) else {}


def join(url: str, policy: str, options: Mapping[str, Any]) -> int:
    """Run workers for another machine's run with the flags of `eval`; return the exit code."""
    if "://" not in url:
        raise LabError(f"--join {url} is not a URL; expected the one that the evaluator printed: http://HOST:8100")
    evaluation.check_policy("--join", url)
    if policy != "auto" and "://" not in policy:
        raise LabError(f"--policy {policy} with --join must be a URL at which this machine reaches the run's policy")
    for name, value in options.items():
        if name not in (*MACHINE_FLAGS, *programs.RUN_OPTIONS) and value not in (None, False):
            raise LabError(f"--join uses the run's settings; remove --{name.replace('_', '-')}")
    run_info, services = fetch_run(url), compose.read()
    module = run_info["job"].get("benchmark") if isinstance(run_info.get("job"), dict) else None
    jobs = [name for name in manifests.benchmarks() if str(module).startswith(f"{services[name].command[2]}.")]
    job = jobs[0] if jobs else manifests.default_job()
    flags = {"policy_url": policy if policy != "auto" else None, **{name: options[name] for name in MACHINE_FLAGS}}
    arguments = ["join", url, *programs.flags_of(flags)]
    # The same runtime as the evaluator's, since rendering may differ; a container cannot reach this machine's loopback.
    prefer = "local" if ports.is_loopback(urlsplit(url).hostname or "") else str(run_info.get("runtime", ""))
    run_options, _ = programs.split_options(options)
    return programs.run_module(job, services[job].command[2], arguments, prefer=prefer, **run_options)
