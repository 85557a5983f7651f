"""For notebooks: a scene in this process, an episode with a policy over HTTP, and its frames."""

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
    """Return a simulator in this process, for any task of any suite; images are `size` × `size` pixels."""
    provenance.check_simulator(BENCHMARK, print)
    assets = BENCHMARK.assets(os.environ.get("VLALAB_LIBERO_ASSETS") or None, Volume().root)
    work = Path(tempfile.mkdtemp(prefix="vlalab-notebook-"))
    return BENCHMARK.make_env(assets.path, work, BENCHMARK.cameras, size, "auto")


def find_policy(url: str | None = None) -> PolicyClient:
    """Return a client of the policy at `url` or $VLALAB_NOTEBOOK_POLICY, or of an oracle started here.

    The oracle, which needs no GPU, is used if neither names a policy or the policy does not answer. It ends with this
    process.
    """
    token = os.environ.get("VLALAB_TOKEN") or None
    for named in filter(None, (url, os.environ.get(POLICY))):
        client = PolicyClient(named, token, timeout_s=60.0, deadline_s=60.0)
        try:
            client.wait_ready(1.0)
            return client
        except PolicyUnavailable as error:
            print(f"{error}; using an oracle instead")
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
    """Run one episode of a task under the policy's profile; return its record."""
    info = client.info()
    plan = make_plan(BENCHMARK, EvalConfig(suite, max_steps=max_steps), info.profile)
    selected = plan.tasks[task]
    spec = specify(plan, info)
    env.load_task(selected, spec.seed, **spec.protocol.scene())
    start = BENCHMARK.init_states(selected)[episode]
    session = f"notebook-{time.time_ns()}"
    return run_episode(env, episode, start, act=client.act, spec=spec, session=session)


def frames_of(env: Environment, record: Record, camera: str = "agentview", every: int = 5) -> list[np.ndarray]:
    """Return every `every`-th frame, uint8 [size, size, 3], of the episode that `env` played last."""
    frames = []
    for state in record.states[::every]:
        env.restore(state)
        frames.append(images.upright(env.render(camera)))
    return frames
