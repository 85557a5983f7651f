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


def join(
    url: str, policy: str, evaluator_options: Mapping[str, object], runtime: str, dry_run: bool, gpu: str | None
) -> int:
    """Run workers for another machine's run; return the exit code."""
    if "://" not in url:
        raise LabError(
            f"--join {url} is not a URL; expected the one that the evaluator printed, for example http://host:8100"
        )
    evaluation.check_policy("--join", url)
    run_flags = [
        name for name, value in evaluator_options.items() if name not in MACHINE_FLAGS and value not in (None, False)
    ]
    if run_flags:
        raise LabError(f"--join uses the run's settings; remove --{run_flags[0].replace('_', '-')}")
    if policy != "auto" and "://" not in policy:
        raise LabError(f"--policy {policy} with --join must be a URL at which this machine reaches the run's policy")
    run_info, services = fetch_run(url), compose.read()
    module = run_info["job"].get("benchmark") if isinstance(run_info.get("job"), dict) else None
    jobs = [name for name in manifests.benchmarks() if str(module).startswith(f"{services[name].command[2]}.")]
    job = jobs[0] if jobs else manifests.default_job()
    flags = {
        "policy_url": policy if policy != "auto" else None,
        **{name: evaluator_options[name] for name in MACHINE_FLAGS},
    }
    arguments = ["join", url, *programs.flags_of(flags)]
    is_local = ports.is_loopback(urlsplit(url).hostname or "")
    prefer = (
        "local" if is_local else str(run_info.get("runtime", ""))
    )  # the same as the evaluator's, since rendering may differ
    return programs.run_module(job, services[job].command[2], arguments, runtime, dry_run, gpu, prefer)
