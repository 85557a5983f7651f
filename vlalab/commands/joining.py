"""`eval --listen` and `eval --join`: one run on several machines."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from vlalab.commands import evaluation, programs
from vlalab.description import compose, manifests, ports
from vlalab.host.console import LabError

MACHINE_FLAGS = ("workers", "assets")  # the evaluator's flags that are a machine's own; the others are the run's
ANSWER_S = 10.0


def runtime_to_listen(runtime: str, address: str, suites: Sequence[str]) -> str:
    """Returns the runtime of an evaluator that others join at that address: a process, unless containers are asked for.

    Raises LabError for several suites, and for an address that is not the same in and outside of containers.
    """
    if len(suites) > 1:
        raise LabError(f"--listen goes with one suite; {', '.join(suites)} are {len(suites)}: one command for each")
    if runtime != "docker":
        return "local"
    host = address.rpartition(":")[0].strip("[]")
    if not ports.is_of_network(host):
        raise LabError(
            f"--listen {address} with --runtime docker: expected this machine's address in its network, in numbers, where "
            "its containers and other machines ask alike; --runtime local listens anywhere"
        )
    os.environ.setdefault("VLALAB_BIND", host)  # for a policy that is started for this run
    return "docker"


def fetch_run(url: str) -> Mapping[str, Any]:
    """Return what the evaluator at an address says of its run; nothing where it gives no answer."""
    import httpx  # 0.1 s that other commands need not pay

    token = compose.token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        # Without redirects: the token is for the address that was given.
        with httpx.Client(timeout=ANSWER_S, trust_env=False) as client:
            answer = client.get(f"{url.rstrip('/')}/v1/run", headers=headers).raise_for_status().json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):  # the program that joins asks again, and says what is wrong
        answer = {}
    return answer if isinstance(answer, dict) else {}


def join(
    url: str, policy: str, evaluator_options: Mapping[str, object], runtime: str, dry_run: bool, gpu: str | None
) -> int:
    """Works on another machine's run; returns the exit code. `given`: the evaluator's flags."""
    if "://" not in url:
        raise LabError(f"--join {url} is not an address; expected what the evaluator said, like http://host:8100")
    evaluation.check_policy("--join", url)
    run_flags = [
        name for name, value in evaluator_options.items() if name not in MACHINE_FLAGS and value not in (None, False)
    ]
    if run_flags:
        raise LabError(f"--join takes the run as it is; leave --{run_flags[0].replace('_', '-')} out")
    if policy != "auto" and "://" not in policy:
        raise LabError(f"--join --policy {policy}: expected the address at which the run's policy is reached from here")
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
    prefer = "local" if is_local else str(run_info.get("runtime", ""))  # the evaluator's: another may draw otherwise
    return programs.run_module(job, services[job].command[2], arguments, runtime, dry_run, gpu, prefer)
