"""Run another project's evaluation with LIBERO or with fast_libero in its place, and record what every call returned.

    python recorded_program.py stock|fast openpi|openvla|lerobot|vla_eval RECORD SUITES [flags]

It runs in that project's environment, so it imports nothing of the lab but fast_libero. The programs are the projects'
own files: `--checkout` has those of openpi and OpenVLA, in which `libero.libero` becomes `fast_libero`; LeRobot and
vla-eval are installed, and LIBERO's class is replaced before they import it. Only OpenVLA's model is not: a function
of the image takes its place. An episode ends after --steps actions of the policy.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import re
import sys
import tempfile
import time
import types
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

WAIT = 10  # steps before the policy's first action, in all four programs


class Recorder:
    """Notes a digest of what `reset`, `set_init_state` and `step` of LIBERO's environments got and returned."""

    def __init__(self, steps: int):
        self.steps = steps
        self.start()

    def start(self) -> None:
        """Forget what was noted."""
        self.calls: list[dict[str, str]] = []
        self.count = 0  # steps of this episode
        self.problems: set[str] = set()  # modules of the simulated problem's class
        self.started = self.ended = 0.0  # processor time, s

    def record(self) -> dict[str, Any]:
        """Return what was noted since `start`, for JSON."""
        return {"problems": sorted(self.problems), "seconds": self.ended - self.started, "calls": self.calls}

    def attach(self, wrapper: Any) -> None:
        """Replace the methods of LIBERO's `ControlEnv`, which both sides inherit."""
        wrapper.reset = self._recorded("reset", wrapper.reset)
        wrapper.set_init_state = self._recorded("set_init_state", wrapper.set_init_state)
        wrapper.step = self._recorded("step", wrapper.step)

    def _recorded(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(env: Any, *args: Any) -> Any:
            self.started = self.started or time.process_time()
            returned = method(env, *args)
            self.count = self.count + 1 if name == "step" else 0
            if name == "step":
                observation, reward, done, info = returned
                done = bool(done) or self.count >= WAIT + self.steps
                returned = observation, reward, done, info
            self._note(env, name, args, returned)
            self.ended = time.process_time()
            return returned

        return call

    def _note(self, env: Any, name: str, args: tuple[Any, ...], returned: Any) -> None:
        observation = returned[0] if name == "step" else returned
        images = {key: value for key, value in observation.items() if key.endswith("_image")}
        rest = {key: value for key, value in observation.items() if key not in images}
        rest["order"] = np.array(list(observation))
        rest["hand"] = env.robots[0].controller.ee_ori_mat
        if name == "step":
            rest["result"] = np.array([returned[1], returned[2]], float)
        self.problems.add(type(env.env).__module__)
        self.calls.append(
            {
                "call": name,
                "arguments": digest({str(number): np.asarray(each, float) for number, each in enumerate(args)}),
                "state": digest({"state": env.get_sim_state()}),
                "observation": digest(rest),
                "images": digest(images),
            }
        )


def digest(arrays: Mapping[str, Any]) -> str:
    """Return a digest of named arrays, with shapes and types."""
    total = hashlib.sha256()
    for name, value in arrays.items():
        array = np.ascontiguousarray(value)
        total.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return total.hexdigest()[:16]


def module(name: str, path: Path, side: str) -> types.ModuleType:
    """Execute a file of a checkout as a module; `fast` takes the place of LIBERO in its imports."""
    source = path.read_text()
    text, count = re.subn(r"(?<![\w.])libero\.libero\b", "fast_libero", source)
    assert count, f"{path} does not import LIBERO"
    made = types.ModuleType(name)
    sys.modules[name] = made
    made.__file__ = str(path)
    exec(compile(text if side == "fast" else source, path, "exec", dont_inherit=True), made.__dict__)
    return made


def limit_tasks(program: Any, suite: str, number: int) -> None:
    """Let the suite that a program gets say that it has so many tasks."""
    made = program.benchmark.get_benchmark_dict()[suite]()
    made.n_tasks = number
    program.benchmark = types.SimpleNamespace(get_benchmark_dict=lambda: {suite: lambda: made})


def run_openpi(args: argparse.Namespace) -> None:
    """openpi's examples/libero/main.py, against the openpi service at --server."""
    main = module("main", args.checkout / "examples" / "libero" / "main.py", args.side)
    limit_tasks(main, args.suite, args.tasks)
    host, port = args.server.split(":")
    with tempfile.TemporaryDirectory() as videos:
        options = {"task_suite_name": args.suite, "num_trials_per_task": args.trials, "video_out_path": videos}
        main.eval_libero(main.Args(host=host, port=int(port), **options))


def run_openvla(args: argparse.Namespace) -> None:
    """OpenVLA's experiments/robot/libero/run_libero_eval.py; its model is a function of the image."""
    sys.path.insert(0, str(args.checkout))
    model = types.ModuleType("experiments.robot.openvla_utils")

    def get_vla_action(model: Any, processor: Any, checkpoint: Any, obs: Any, *rest: Any, **options: Any) -> np.ndarray:
        return np.append(np.random.default_rng(zlib.crc32(obs["full_image"].tobytes())).uniform(-0.5, 0.5, 6), 0.9)

    model.get_vla = lambda cfg: types.SimpleNamespace(norm_stats={args.suite: {}})  # type: ignore[attr-defined]
    model.get_processor = lambda cfg: None  # type: ignore[attr-defined]
    model.get_vla_action = get_vla_action  # type: ignore[attr-defined]
    sys.modules[model.__name__] = model
    files = args.checkout / "experiments" / "robot" / "libero"
    module("experiments.robot.libero.libero_utils", files / "libero_utils.py", args.side)
    program = module("run_libero_eval", files / "run_libero_eval.py", args.side)
    limit_tasks(program, args.suite, args.tasks)
    flags = {"task_suite_name": args.suite, "num_trials_per_task": args.trials, "local_log_dir": "logs"}
    sys.argv = ["run_libero_eval.py", *(f"--{name}={value}" for name, value in flags.items())]
    program.eval_libero()


def replace_class(side: str) -> None:
    """The documented lines for programs that cannot be edited."""
    if side == "fast":
        import libero.libero.envs

        import fast_libero.envs

        libero.libero.envs.OffScreenRenderEnv = fast_libero.envs.OffScreenRenderEnv


def run_lerobot(args: argparse.Namespace) -> None:
    """`lerobot-eval` with the checkpoint at --checkpoint."""
    replace_class(args.side)
    from lerobot.scripts.lerobot_eval import main

    flags = {
        "policy.path": args.checkpoint, "policy.device": "cpu", "env.type": "libero", "env.task": args.suite,
        "env.task_ids": list(range(args.tasks)), "eval.n_episodes": args.trials, "eval.batch_size": 1,
        "output_dir": "eval",
    }  # fmt: skip
    sys.argv = ["lerobot-eval", *(f"--{name}={value}" for name, value in flags.items())]
    main()


def run_vla_eval(args: argparse.Namespace) -> None:
    """vla-eval's runner and its benchmark class of LIBERO, against the lab's service for its clients at --server."""
    replace_class(args.side)
    import anyio
    from vla_eval.benchmarks.libero.benchmark import LIBEROBenchmark
    from vla_eval.connection import Connection
    from vla_eval.runners.sync_runner import SyncEpisodeRunner

    async def play() -> None:
        benchmark = LIBEROBenchmark(suite=args.suite, send_wrist_image=True, send_state=True)
        async with Connection(f"ws://{args.server}/vla-eval", timeout=120.0) as connection:
            for task in benchmark.get_tasks()[: args.tasks]:
                for episode in range(args.trials):
                    numbered = {**task, "episode_idx": episode}
                    await SyncEpisodeRunner().run_episode(benchmark, numbered, connection, max_steps=args.steps)
        benchmark.cleanup()

    anyio.run(play)


PROGRAMS = {"openpi": run_openpi, "openvla": run_openvla, "lerobot": run_lerobot, "vla_eval": run_vla_eval}


def main() -> None:
    """Run the program and write its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=("stock", "fast"))
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("record", type=Path)
    parser.add_argument("suites", help="names, separated by commas")
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkout", type=Path)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--server", help="host:port")
    args = parser.parse_args()
    if args.side == "fast":
        import fast_libero.envs  # noqa: F401  before LIBERO
    from libero.libero.envs import env_wrapper

    recorder = Recorder(args.steps)
    recorder.attach(env_wrapper.ControlEnv)
    records = {}
    for suite in args.suites.split(","):
        args.suite = suite
        recorder.start()
        PROGRAMS[args.program](args)
        records[suite] = recorder.record()
        args.record.write_text(json.dumps(records))


if __name__ == "__main__":
    main()
