"""LIBERO episodes an hour by the lab's evaluator and by LeRobot 0.6.1's `lerobot-eval`, with the same ACT checkpoint.

    ./lab env libero
    ./lab bench lerobot_eval [--quick] [--options "--environment DIR --checkpoint DIR --assets official|kit|DIR"]

Both run the protocol of profile `lerobot`: 360 x 360 pixels, the same assets, init states, seeds and MuJoCo.
lerobot-eval gets its own environment, in --environment (made if it does not exist; default: a temporary one): the lab's
locked packages of `lerobot`, and LeRobot's extra `libero`. Its defaults choose one environment on two cores; the second
side has `--eval.batch_size=2`. The lab serves the checkpoint from its environment `lerobot`, with one worker per core.
Measured are episodes from the end of each worker's first one: without start-up, and without building the simulator. The
processor time of an episode is that of all processes of a side; on a shared machine it says more than the clock.
Each episode's success, length and actions are compared. The default checkpoint is a tiny random one, which never
succeeds.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import yaml

from bench.common import ROOT, VARIABLES, ProcessorTime, figure, flags, make_environment, missed, program, run
from services.lerobot import tiny
from services.libero import assets
from services.libero.profiles import SIMULATOR
from vla_common.volume import Volume
from vla_evaluation.store.runstore import RunStore

ENVIRONMENT = "lerobot"
PACKAGE = "lerobot[libero]==0.6.1"
LIBERO = ROOT / "images" / "libero" / ".venv" / "bin" / "python"  # the evaluator's
SUITE, TASK = "libero_object", 0
QUICK_STEPS = 40
SIDES = {"defaults": (), "batch_size=2": ("--eval.batch_size=2",)}  # of lerobot-eval
TARGETS = {"defaults": ">=3", "batch_size=2": ">=2"}


@dataclass(frozen=True)
class Setting:
    """What all sides share. python: of LeRobot's environment; steps: the episodes' limit, None: the profile's."""

    python: Path
    assets: Path
    checkpoint: Path
    episodes: int
    steps: int | None


@dataclass(frozen=True)
class Episode:
    """actions: float32 [T, 7]; worker: what runs one episode at a time."""

    worker: str
    ended_at: float
    success: bool
    actions: np.ndarray


@dataclass(frozen=True)
class Measured:
    """A run: its episodes by number, episodes per hour, and seconds of processor time per episode."""

    episodes: list[Episode]
    per_hour: float
    cpu_s: float


def environment(directory: Path, asset_dir: Path) -> Path:
    """Make LeRobot's environment with LIBERO in `directory`, if it does not exist; return its interpreter.

    hf-libero looks for the assets in its package first. Raises CalledProcessError if an install fails.
    """
    python = directory / "bin" / "python"
    if not python.exists():
        make_environment(directory, ENVIRONMENT, PACKAGE, f"mujoco=={SIMULATOR['mujoco']}")
    (link := libero_package(directory) / "assets").unlink(missing_ok=True)
    link.symlink_to(asset_dir)
    return python


def libero_package(directory: Path) -> Path:
    """Return the directory of LIBERO's package in an environment."""
    return next(directory.glob("lib/python3*/site-packages/libero/libero"))


def run_lerobot(setting: Setting, work: Path, *settings: str) -> list[Episode]:
    """Run the episodes with lerobot-eval; return them by number. Raises RuntimeError if it fails."""
    package = libero_package(setting.python.parents[1])
    paths = {"bddl_files": "bddl_files", "init_states": "init_files", "assets": "assets", "benchmark_root": "."}
    (work / "config.yaml").write_text(yaml.safe_dump({key: str(package / name) for key, name in paths.items()}))
    script, log = ROOT / "bench" / "parts" / "lerobot_eval_logged.py", work / "rollouts"
    command = [str(setting.python), str(script), str(log)]
    command += [f"--policy.path={setting.checkpoint}", "--policy.device=cpu", "--env.type=libero"]
    command += [f"--env.task={SUITE}", f"--env.task_ids=[{TASK}]", f"--eval.n_episodes={setting.episodes}"]
    command += [f"--output_dir={work / 'output'}", *settings]
    command += [f"--env.episode_length={setting.steps}"] if setting.steps else []
    env = {"LIBERO_CONFIG_PATH": str(work), "MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "egl", "HF_HUB_OFFLINE": "1"}
    run(command, {**VARIABLES, **env})
    episodes = []
    for number, line in enumerate(log.read_text().splitlines()):
        rollout, actions = json.loads(line), np.load(f"{log}.{number}.npy")
        for slot, (success, steps) in enumerate(zip(rollout["success"], rollout["steps"], strict=True)):
            episodes.append(Episode(str(slot), rollout["ended_at"], success, actions[slot, :steps]))
    return episodes


def run_lab(setting: Setting, work: Path) -> list[Episode]:
    """Run the episodes with the lab's evaluator and service; return them by number."""
    serve = ("services.lerobot", "--host", "127.0.0.1", "--checkpoint", str(setting.checkpoint), "--device", "cpu")
    with program(work / "service.txt", sys.executable, *serve) as url:
        command = [str(LIBERO), "-m", "services.libero", SUITE, "--policy-url", url, "--run-dir", str(work)]
        command += ["--run-id", "run", "--tasks", str(TASK), "--trials", str(setting.episodes)]
        command += ["--assets", str(setting.assets)]
        command += ["--max-steps", str(setting.steps)] if setting.steps else []
        run(command, VARIABLES)
    with RunStore(work / "run" / "run.sqlite", readonly=True) as store:
        finished = sorted(store.finished(), key=lambda episode: episode.episode)
    actions = {}
    for path in (work / "run" / "episodes").glob("*.npz"):
        with np.load(path) as recorded:
            actions[int(path.stem.partition("-")[2])] = recorded["actions"]
    return [Episode(e.worker, e.ended_at, e.success, actions[e.episode]) for e in finished]


def measured(side: Callable[[], list[Episode]]) -> Measured:
    """Run a side. Its rates count from the end of each worker's first episode to the end of its last."""
    with ProcessorTime() as processor_time:
        episodes = side()
    per_s, cpu_s = processor_time.steady_state((e.worker, e.ended_at, 1) for e in episodes)
    return Measured(episodes, 3600 * per_s, cpu_s)


def count_equal(name: str, lerobot: list[Episode], lab: list[Episode]) -> int:
    """Return how many episodes have the same success and length on both sides; print how far actions differ."""
    equal, apart = 0, []
    for a, b in zip(lerobot, lab, strict=True):
        equal += (a.success, len(a.actions)) == (b.success, len(b.actions))
        length = min(len(a.actions), len(b.actions))
        apart.append(float(np.abs(a.actions[:length] - b.actions[:length]).max()))
    print(f"{name}: {equal} of {len(lab)} outcomes equal; largest difference of an action by episode: ", end="")
    print(", ".join(f"{difference:.2g}" for difference in apart), flush=True)
    return equal


def main() -> int:
    """Measure the sides alternately; return 1 if a figure misses its target."""
    parser = flags("Episodes per hour compared with lerobot-eval.", f"one round, episodes of {QUICK_STEPS} steps")
    parser.add_argument("--environment", type=Path, help="directory of LeRobot's environment with LIBERO")
    parser.add_argument("--checkpoint", type=Path, help="an ACT checkpoint; default: a tiny random one")
    parser.add_argument("--assets", default="official", help="kit, official or a directory")
    parser.add_argument("--episodes", type=int, default=4, help="at least 4: two for each of two workers")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, help="step limit of an episode; default: the profile's")
    args = parser.parse_args()
    if not LIBERO.exists():
        parser.error("the evaluator's environment is missing; run ./lab env libero")
    with tempfile.TemporaryDirectory() as name:
        temporary = Path(name)
        source = assets.resolve(args.assets, Volume().root).path
        python = environment(args.environment or temporary / "lerobot", source)
        checkpoint = args.checkpoint or tiny.write(temporary / "act", "act")
        steps = QUICK_STEPS if args.quick and not args.steps else args.steps
        setting = Setting(python, source, checkpoint.absolute(), args.episodes, steps)
        rounds = 1 if args.quick else args.rounds
        results: dict[str, list[Measured]] = {name: [] for name in (*SIDES, "lab")}
        for number, name in itertools.product(range(rounds), results):
            (work := temporary / f"{name}-{number}").mkdir()
            start = time.monotonic()
            side = partial(run_lab, setting, work)
            result = measured(side if name == "lab" else partial(run_lerobot, setting, work, *SIDES[name]))
            results[name].append(result)
            successes = sum(episode.success for episode in result.episodes)
            print(
                f"{name:13} {result.per_hour:7.0f} episodes/h, {result.cpu_s:6.1f} CPU-s each, {successes} of "
                f"{setting.episodes} succeed; {time.monotonic() - start:.0f} s with start-up, "
                f"load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    lab = results["lab"][0].episodes
    for name in SIDES:
        label = name.replace("=", "_")
        equal = count_equal(name, results[name][0].episodes, lab)
        figure(f"lerobot_eval_outcomes_equal_{label}", equal, f"of {len(lab)}", f">={len(lab)}", quick=True)
        pairs = list(zip(results[name], results["lab"], strict=True))
        hours = statistics.median(b.per_hour / a.per_hour for a, b in pairs)
        figure(f"lerobot_eval_episodes_over_{label}", hours, "x", TARGETS[name], quick=True)
        cpu = statistics.median(a.cpu_s / b.cpu_s for a, b in pairs)
        figure(f"lerobot_eval_processor_time_over_{label}", cpu, "x", "none")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
