"""Other projects' evaluation programs with LIBERO and with fast_libero: every state, observation and image compared.

    ./lab bench programs --options "--program openpi --python VENV/bin/python --checkout DIR"

`--python` belongs to an environment with the program (lerobot, vla-eval, or what a checkout of openpi or OpenVLA
imports), fast_libero and LIBERO: docs/fast-libero.md. openpi's and vla-eval's clients ask the lab's `openpi` service
for actions, which follow from the bytes of the images and of the state: a difference would change all that comes later.
Both sides play the same episodes. Time is the processor time of the program, from the
first reset to the last step, with its own work.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.common import ROOT, VARIABLES, figure, flags, missed, program, run, served
from bench.drop_in import SUITES
from services.libero import assets
from vla_common.volume import Volume
from vla_contract import ActionChunk, Observation, Policy, PolicyInfo
from vla_contract.protocol.parts import GRIPPER_CLOSES, HAND_STATE, OSC_POSE
from vla_contract.server.app import create_app

SCRIPT = ROOT / "bench" / "parts" / "recorded_program.py"
NAMES = ("openpi", "openvla", "lerobot", "vla_eval")
HORIZON = 5  # openpi's main.py executes so many actions of each answer
PARTS = ("call", "arguments", "state", "observation", "images")
ACT = "import sys; from pathlib import Path; from services.lerobot import tiny; tiny.write(Path(sys.argv[1]), 'act')"


class BytesPolicy(Policy):
    """Actions that follow from the bytes of the images and of the state."""

    def info(self) -> PolicyInfo:
        cameras = ("agentview", "robot0_eye_in_hand")
        return PolicyInfo("bytes", (*OSC_POSE, GRIPPER_CLOSES), HAND_STATE, cameras=cameras, horizon=HORIZON)

    def act(self, observations: list[Observation]) -> list[ActionChunk]:
        return [ActionChunk(self.actions(observation)) for observation in observations]

    def actions(self, observation: Observation) -> np.ndarray:
        """Return float32 [HORIZON, 7]."""
        assert observation.state is not None
        read = [*(observation.images[name] for name in sorted(observation.images)), observation.state]
        key = zlib.crc32(b"".join(array.tobytes() for array in read))
        return np.random.default_rng(key).uniform(-0.5, 0.5, (HORIZON, 7)).astype(np.float32)


def make_app() -> Any:
    """Return the application that serves `BytesPolicy`."""
    return create_app(BytesPolicy())


@contextlib.contextmanager
def openpi_service(log: Path) -> Iterator[str]:
    """Run the lab's `openpi` service in front of `BytesPolicy`; yield host:port."""
    with (
        served(make_app) as url,
        program(
            log, sys.executable, "services.bridge", "openpi", "--policy-url", url, ready_text="listening on"
        ) as address,
    ):
        yield re.sub(r"^\w+://", "", address)


def play(side: str, python: Path, work: Path, words: Sequence[object]) -> dict[str, Any]:
    """Run a side of a program, without the lab's packages; return its record. Raises RuntimeError if it fails."""
    [package] = python.parents[1].glob("lib/python3*/site-packages/libero/libero")
    paths = {"bddl_files": "bddl_files", "init_states": "init_files", "assets": "assets", "benchmark_root": "."}
    (work / "config.yaml").write_text(json.dumps({name: str(package / path) for name, path in paths.items()}))
    variables = {
        "LIBERO_CONFIG_PATH": str(work), "MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "egl", "LP_NUM_THREADS": "0",
        "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    environment = {name: value for name, value in VARIABLES.items() if name != "PYTHONPATH"} | variables
    record = work / f"{side}.json"
    command = [python, SCRIPT, side, words[0], record, *words[1:]]
    scratch = tempfile.mkdtemp(dir=work)
    done = subprocess.run(
        list(map(str, command)), cwd=scratch, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return dict(json.loads(record.read_text()))


def difference(stock: dict[str, Any], fast: dict[str, Any]) -> str:
    """Return a sentence about the first difference of two records, "" without one."""
    for number, (one, other) in enumerate(zip(stock["calls"], fast["calls"], strict=False)):
        if one != other:
            parts = ", ".join(name for name in PARTS if one[name] != other[name])
            return f"call {number} ({one['call']}): {parts} differ"
    return "" if len(stock["calls"]) == len(fast["calls"]) else "one side made more calls"


def main() -> int:
    """Compare the sides of one program on every suite; return 1 if a figure misses its target."""
    parser = flags("Other projects' programs with LIBERO and with fast_libero.", "one suite, one episode")
    parser.add_argument("--program", choices=NAMES, required=True)
    parser.add_argument("--python", type=Path, required=True, help="interpreter of the program's environment")
    parser.add_argument("--checkout", type=Path, help="directory of openpi's or OpenVLA's repository")
    parser.add_argument("--suites", default=SUITES, help="names, separated by commas")
    parser.add_argument("--assets", help="kit, official or a directory; default: as in an evaluation")
    parser.add_argument("--steps", type=int, default=20, help="actions of an episode")
    parser.add_argument("--trials", type=int, default=4, help="episodes of each task")
    parser.add_argument("--tasks", type=int, default=1, help="of each suite, from the first")
    args = parser.parse_args()
    if args.program in ("openpi", "openvla") and args.checkout is None:
        parser.error(f"--program {args.program} needs --checkout")
    names, trials = (args.suites.split(",")[:1], 1) if args.quick else (args.suites.split(","), args.trials)
    python = args.python.absolute()  # a link into an environment stays one
    compared, ratios = 0, []
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        source = assets.resolve(args.assets, Volume().root)
        [package] = python.parents[1].glob("lib/python3*/site-packages/libero/libero")
        (package / "assets").unlink(missing_ok=True)
        (package / "assets").symlink_to(source.path)
        words: list[object] = ["--tasks", args.tasks, "--trials", trials, "--steps", args.steps]
        words += ["--checkout", args.checkout.absolute()] if args.checkout else []
        if args.program in ("openpi", "vla_eval"):
            words += ["--server", stack.enter_context(openpi_service(work / "service.txt"))]
        if args.program == "lerobot":
            run([python, "-c", ACT, work / "act"], VARIABLES)
            words += ["--checkpoint", work / "act"]
        words = [args.program, ",".join(names), *words]
        sides = [play(side, python, work, words) for side in ("stock", "fast")]
        for suite, (stock, fast) in {name: [side[name] for side in sides] for name in names}.items():
            assert "fast_libero.problem" in fast["problems"] and "fast_libero.problem" not in stock["problems"]
            if found := difference(stock, fast):
                raise AssertionError(f"{args.program}, {suite}: {found}")
            episodes = sum(call["call"] == "set_init_state" for call in stock["calls"])
            steps = sum(call["call"] == "step" for call in stock["calls"])
            ratios.append(stock["seconds"] / fast["seconds"])
            print(
                f"{args.program}, {suite}, {source.kind}: {episodes} episodes, {steps} steps equal; processor time "
                f"{stock['seconds']:.1f} : {fast['seconds']:.1f} s, {ratios[-1]:.2f} x",
                flush=True,
            )
            assert steps >= episodes * 10 + 1, "the program did not play; look at its log"
            compared += episodes
    figure(f"programs_{args.program}_equal_episodes", compared, "", f">={4 * len(names)}")
    figure(f"programs_{args.program}_processor_time", float(np.mean(ratios)), "x", "none")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
