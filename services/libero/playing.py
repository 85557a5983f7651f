"""For notebooks: a scene in this process, an episode against a policy over HTTP, and its film."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from services.libero.benchmark import BENCHMARK
from vla_common.volume import Volume
from vla_contract import PolicyClient
from vla_contract.protocol.errors import PolicyUnavailable
from vla_contract.server.serving import listen
from vla_evaluation import provenance
from vla_evaluation.benchmark import Environment
from vla_evaluation.config import EvalConfig
from vla_evaluation.pictures import images
from vla_evaluation.plan import make_plan, specify
from vla_evaluation.rollout import Record, run_episode

POLICY = "VLALAB_NOTEBOOK_POLICY"
READY_S = 120.0


def open_scene(size: int = 256) -> Environment:
    """Returns this process's simulator, for any task of any suite; pictures are `size` × `size`."""
    provenance.check_simulator(BENCHMARK, print)
    assets = BENCHMARK.assets(os.environ.get("VLALAB_LIBERO_ASSETS") or None, Volume().root)
    work = Path(tempfile.mkdtemp(prefix="vlalab-notebook-"))
    return BENCHMARK.make_env(assets.path, work, BENCHMARK.cameras, size, "auto")


def find_policy(url: str | None = None) -> PolicyClient:
    """Returns a client of the policy at `url`, else at $VLALAB_NOTEBOOK_POLICY; else of an oracle started for it.

    A policy that is named by neither, or does not answer, is no error: the oracle needs no GPU.
    """
    token = os.environ.get("VLALAB_TOKEN") or None
    for named in filter(None, (url, os.environ.get(POLICY))):
        client = PolicyClient(named, token, timeout_s=60.0, deadline_s=60.0)
        try:
            client.wait_ready(1.0)
            return client
        except PolicyUnavailable as error:
            print(f"{error}; an oracle of its own takes its place")
    return start_oracle(token)


def start_oracle(token: str | None = None) -> PolicyClient:
    """Returns a client of an oracle in a process of its own, which ends with this one."""
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "services.libero.policies", "oracle", "--port", str(port)]
    quiet = {**os.environ, "VLALAB_BIND": "127.0.0.1"}
    process = subprocess.Popen(command, env=quiet, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(process.kill)
    client = PolicyClient(f"http://127.0.0.1:{port}", token)
    client.wait_ready(READY_S)
    return client


def play(
    env: Environment, client: PolicyClient, suite: str, task: int, episode: int = 0, max_steps: int | None = None
) -> Record:
    """Returns the record of an episode of a suite's task, under the profile that the policy names."""
    info = client.info()
    plan = make_plan(BENCHMARK, EvalConfig(suite, max_steps=max_steps), info.profile)
    wanted = plan.tasks[task]
    spec = specify(plan, info)
    env.load_task(wanted, spec.seed, **spec.protocol.scene())
    start = BENCHMARK.init_states(wanted)[episode]
    session = f"notebook-{time.time_ns()}"
    return run_episode(env, episode, start, act=client.act, spec=spec, session=session)


def frames_of(env: Environment, record: Record, camera: str = "agentview", every: int = 5) -> list[np.ndarray]:
    """Returns pictures of the episode that `env` has just played: uint8 [size, size, 3], every so many steps."""
    found = []
    for state in record.states[::every]:
        env.restore(state)
        found.append(images.upright(env.render(camera)))
    return found
