"""Speed of LIBERO episodes here and in vla-eval 0.8.0, with a policy that returns recorded actions immediately.

    ./lab bench peer [--quick] [--options "--assets official|kit|DIR --suite libero_goal --peer PYTHON"]

vla-eval gets its own environment: this project's locked requirements of libero plus vla-eval. --peer selects an
existing one. Its harness runs by its own command, without Docker and without saving, with vla-eval's model server.
`./lab`'s evaluator uses the same server through the bridge, an additional process ("bridge"), and a policy with this
project's own protocol that returns the same actions. Each server logs the time of every request. Measured is the time
from the start of every worker until the start of the last episode: steps and resets, without start-up. The images of
the first episode must be bit-identical.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from bench.common import ROOT, SINGLE_THREADED, VARIABLES, figure, flags, make_environment, program, run, served
from bench.parts import peer_log
from bench.sim import oracle_actions
from services.libero import assets
from services.libero.profiles import PROFILES
from services.libero.simulator import runtime, suites
from vla_common.volume import Volume
from vla_contract import ActionChunk, Observation, PolicyInfo, create_app
from vla_evaluation.provenance import cores
from vla_evaluation.random_policy import RandomPolicy

PACKAGE = "vla-eval==0.8.0"
STEPS = 80  # of an episode; the oracle needs more
SIDES = ("vla-eval", "bridge", "vla-lab")
TARGETS = (">=4", ">=3")  # of one camera, of two
PARTS = Path(__file__).parent / "parts"


@dataclass(frozen=True)
class Setting:
    """The episodes of both sides: one task, the number of workers, one camera or two."""

    peer: str
    assets: str
    suite: str
    actions: Path
    workers: int
    episodes: int
    wrist: bool


class Measured(NamedTuple):
    """Episodes per hour, including resets; median milliseconds between requests; checksums of the first images."""

    per_hour: float
    step_ms: float
    first: list[str]


@dataclass(frozen=True)
class Recorded(RandomPolicy):
    """Returns recorded actions by the episode's step, as peer_server.py does, and writes the same log."""

    actions: np.ndarray | None = None  # [steps, 7]
    log: Path = Path()

    def info(self) -> PolicyInfo:
        return replace(super().info(), profile="vla-eval")

    def act(self, observations: list[Observation]) -> list[ActionChunk]:
        with self.log.open("a") as lines:
            lines.writelines(peer_log.line(seen.session, seen.step, seen.images) for seen in observations)
        last = len(self.actions) - 1
        return [ActionChunk(self.actions[min(observation.step, last)][None]) for observation in observations]


def make_app(actions: Path, cameras: tuple[str, ...], log: Path):
    """Return the application of this project's own policy."""
    policy = Recorded("recorded", PROFILES["vla-eval"].action, cameras=cameras, actions=np.load(actions), log=log)
    return create_app(policy)


@contextlib.contextmanager
def model_server(setting: Setting, log: Path) -> Iterator[str]:
    """Serve the recorded actions; yield the address. Raises RuntimeError if it does not start."""
    command = [setting.peer, str(PARTS / "peer_server.py"), str(setting.actions), str(log)]
    process = subprocess.Popen([*command, *(["wrist"] if setting.wrist else [])], stdin=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while not (log.exists() and "\n" in (text := log.read_text())):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"vla-eval's server did not start: {command}")
            time.sleep(0.1)
        yield f"127.0.0.1:{text.splitlines()[0]}"
    finally:
        process.terminate()
        process.wait(30)


def run_vla_eval(setting: Setting, server: str, work: Path) -> None:
    """Run the episodes with vla-eval, one process per worker, with Mesa's default number of llvmpipe threads."""
    entry = {
        "benchmark": "vla_eval.benchmarks.libero.benchmark:LIBEROBenchmark",
        "episodes_per_task": setting.episodes,
        "max_steps": STEPS,
        "max_tasks": 1,
        "params": {"suite": setting.suite},
    }
    config = work / "peer.yaml"
    config.write_text(yaml.safe_dump({"server": {"url": f"ws://{server}"}, "benchmarks": [entry]}))
    env = {**VARIABLES, **SINGLE_THREADED, "LP_NUM_THREADS": str(cores())}
    shards = []
    for number in range(setting.workers):
        arguments = ["run", "--config", config, "--no-docker", "--yes", "--no-save", "--output-dir", work / "results"]
        arguments += ["--shard-id", number, "--num-shards", setting.workers] if setting.workers > 1 else []
        command = [setting.peer, PARTS / "peer_shard.py", setting.assets, work / f"shard{number}", *arguments]
        shards.append(subprocess.Popen(list(map(str, command)), cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=2))
    ended = [shard.wait(1800) for shard in shards]
    if any(ended):
        raise RuntimeError(f"vla-eval ended with {ended}")


def run_vla_lab(setting: Setting, url: str, work: Path) -> None:
    """Run the episodes with this project's evaluator."""
    command = [sys.executable, "-m", "services.libero", setting.suite, "--policy-url", url, "--run-dir", work]
    command += ["--run-id", "ours", "--tasks", "0", "--trials", setting.episodes, "--workers", setting.workers]
    run([*command, "--video", "none", "--max-steps", STEPS, "--assets", setting.assets], VARIABLES)


def played(name: str, setting: Setting, work: Path) -> Measured:
    """Run the episodes on one side; return the measurements from the server's log."""
    log = work / "asked.txt"
    if name == "vla-lab":
        log.write_text("\n")  # the line in which a model server writes its port
        cameras = ("agentview", "robot0_eye_in_hand")[: 1 + setting.wrist]
        with served(partial(make_app, setting.actions, cameras, log)) as url:
            run_vla_lab(setting, url, work)
        return measured(setting, log)
    with model_server(setting, log) as server:
        if name == "vla-eval":
            run_vla_eval(setting, server, work)
        else:
            arguments = ("services.bridge", "policy", "--host", "127.0.0.1", "--server", f"ws://{server}")
            with program(work / "bridge.txt", sys.executable, *arguments, **SINGLE_THREADED) as url:
                run_vla_lab(setting, url, work)
    return measured(setting, log)


def measured(setting: Setting, log: Path) -> Measured:
    """Read the server's log. Raises RuntimeError if an episode is missing."""
    requests: dict[str, list[tuple[float, str]]] = {}
    for line in log.read_text().splitlines()[1:]:
        at, episode, step, seen = line.split()
        if step == "0" or episode in requests:  # the bridge sends one request before the first episode
            requests.setdefault(episode, []).append((float(at), seen))
    episodes = sorted((steps for steps in requests.values() if len(steps) == STEPS), key=lambda steps: steps[0][0])
    if len(episodes) != setting.episodes:
        raise RuntimeError(f"expected {setting.episodes} complete episodes in {log}, got {len(episodes)}")
    begin, end = episodes[setting.workers - 1][0][0], episodes[-1][0][0]
    steps = sum(begin <= at < end for episode in episodes for at, _ in episode)
    gaps = [after[0] - before[0] for episode in episodes for before, after in pairwise(episode)]
    return Measured(3600 * steps / STEPS / (end - begin), 1e3 * statistics.median(gaps), [s for _, s in episodes[0]])


def compare(setting: Setting, rounds: int) -> None:
    """Measure all sides alternately; print their medians and their speed relative to vla-eval."""
    results: dict[str, list[Measured]] = {name: [] for name in SIDES}
    for _ in range(rounds):
        for name in SIDES:
            with tempfile.TemporaryDirectory() as directory:
                results[name].append(played(name, setting, Path(directory)))
    print(f"\n{setting.suite}, cameras: {1 + setting.wrist}, workers: {setting.workers}")
    hour = {name: statistics.median(one.per_hour for one in many) for name, many in results.items()}
    step = {name: statistics.median(one.step_ms for one in many) for name, many in results.items()}
    for name in SIDES:
        print(f"  {name:<9} {hour[name]:7.0f} episodes/h   {step[name]:7.1f} ms between requests")
        # With two workers the first episode is that of the faster one.
        if setting.workers == 1 and results[name][0].first != results["vla-eval"][0].first:
            raise RuntimeError(f"{name} and vla-eval had different images")
    for name in SIDES[1:]:
        label = f"{name.replace('-', '_')}_{setting.suite}_cameras_{1 + setting.wrist}_workers_{setting.workers}"
        figure(f"peer_episodes_{label}", hour[name] / hour["vla-eval"], "x", TARGETS[setting.wrist], quick=True)
        figure(f"peer_step_{label}", step["vla-eval"] / step[name], "x", TARGETS[setting.wrist], quick=True)


def main() -> None:
    parser = flags("Episodes per hour compared with vla-eval.", "few episodes, one round")
    parser.add_argument("--peer", help="Python of an environment with vla-eval; default: create one")
    parser.add_argument("--assets", default="official", help="kit, official or a directory")
    parser.add_argument("--suite", default="libero_goal")
    args = parser.parse_args()
    source = assets.resolve(args.assets, Volume().root)
    task = suites.load_suite(args.suite).tasks[0]
    with tempfile.TemporaryDirectory() as directory:
        runtime.configure(source.path, Path(directory), "cpu")
        wait = PROFILES["vla-eval"].wait_steps
        actions = oracle_actions(task, source.path, suites.init_states(task)[0], wait + STEPS)[wait:]
        actions = np.array(actions, np.float32)
        actions[:, -1] = np.where(actions[:, -1] < 0, -1, 1)  # as in vla-eval; the oracle also uses 0 (no change)
        np.save(recorded := Path(directory) / "actions.npy", actions)
        peer = Path(args.peer or make_environment(Path(directory) / "vla-eval", "libero", PACKAGE)).absolute()
        common = (str(peer), str(source.path), args.suite, recorded)
        for wrist in (False, True):
            for workers in (1, 2):
                episodes = workers * (3 if args.quick else 6) + 1
                compare(Setting(*common, workers, episodes, wrist), 1 if args.quick else 3)


if __name__ == "__main__":
    main()
