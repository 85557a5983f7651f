"""LeRobot's policies in the service against LeRobot's own code, on tiny random checkpoints on a CPU.

- every type that can be built small: actions of two interleaved sessions, over an interrupted episode of 7 steps and
  one of 20, compared with `select_action` of one LeRobot policy per session, to the bit;
- ACT: eight observations in one batch against one at a time.

    ./lab bench lerobot [--quick]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from bench.common import figure, flags, interleaved, missed
from services.lerobot import tiny
from services.lerobot.policy import LeRobotPolicy, load_policy
from services.lerobot.reference import CAMERAS, Reference, count_differences, random_observation
from services.lerobot.settings import ModelSettings
from services.lerobot.types import NOT_TINY, TINY

ENVIRONMENT = "lerobot"
BATCH, SESSIONS = 8, ("first", "second")
VARIANTS: dict[str, dict[str, Any]] = {
    "act, temporal ensembling": {"temporal_ensemble_coeff": 0.01, "n_action_steps": 1}
}


def main() -> int:
    """Print the tables and the FIGURE lines; return 1 if a figure misses its target."""
    options = flags("LeRobot's policies in the service against LeRobot's own.", "four types, few rounds").parse_args()
    kinds = ("act", "multi_task_dit", "smolvla", "tdmpc") if options.quick else (*TINY, *VARIANTS)
    with tempfile.TemporaryDirectory() as name:
        equal = sum(is_equal(kind, Path(name) / kind.replace(", ", "-").replace(" ", "-")) for kind in kinds)
        for kind, reason in NOT_TINY.items():
            print(f"{kind:26} not tested: {reason}")
        figure("lerobot_types_equal_to_upstream", equal, f"of {len(kinds)}", f">={len(kinds)}", quick=True)
        batched(load(tiny.write(Path(name) / "batch", "act")), 4 if options.quick else 20)
        return int(bool(missed))


def load(directory: Path, kind: str = "") -> LeRobotPolicy:
    """Return the service's policy."""
    return load_policy(ModelSettings(checkpoint=str(directory), device="cpu", cameras=CAMERAS.get(kind, "")))


def is_equal(kind: str, directory: Path) -> bool:
    """Return whether no action of a type differs from LeRobot's, and print a line."""
    start = time.monotonic()
    checkpoint = tiny.write(directory / "checkpoint", kind.split(",")[0], **VARIANTS.get(kind, {}))
    policy = load(checkpoint, kind)
    references = {session: Reference(checkpoint, policy.cameras, directory / session) for session in SESSIONS}
    different = count_differences(policy, references)
    result = f"{different} of 54 actions DIFFER" if different else "equal to the bit"
    state = "per session" if policy.stateful else "none"
    print(f"{kind:26} {result}, state {state}, {time.monotonic() - start:.0f} s", flush=True)
    return different == 0


def batched(policy: LeRobotPolicy, rounds: int) -> None:
    """Time a batch against the same observations one by one."""
    observations = [random_observation(policy.info(), str(index), 0) for index in range(BATCH)]
    sides = {
        "one by one": lambda: [policy.act([observation]) for observation in observations],
        "together": lambda: policy.act(observations),
    }
    seconds = interleaved(sides, rounds, f"ACT, {BATCH} observations", warmup=2)
    figure("lerobot_act_batch_over_single", seconds.ratio("one by one", "together"), "ratio", ">=2", quick=True)


if __name__ == "__main__":
    sys.exit(main())
