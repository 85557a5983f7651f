"""GR00T N1.5: our engine against upstream's code on the same checkpoint, in one run.

On small random checkpoints on a CPU (tiny: Python takes most of the time; mid: arithmetic does). What is measured:
- one action, both sides alternately: ours in fp32 and bf16, upstream's in its own precision (bf16);
- a batch of eight against one at a time;
- the seven exported modules, torch and onnxruntime;
- fine-tuning's samples per second on one thread, from videos to a batch: bench/parts/gr00t_loading.py.

    ./lab bench gr00t [--quick]

VLALAB_GR00T_SOURCE names the checkout of Isaac-GR00T whose code is the other side; without one that is left out, and
said.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # otherwise this file would shadow upstream's package
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # upstream's loader asks the hub first

from vla_modelkit.threads import set_wait_policy

set_wait_policy()  # as the service does, before torch is imported

import numpy as np
import torch

from bench.common import figure, flags, interleaved
from bench.parts.gr00t_loading import loading
from services.gr00t.checkpoint import tiny
from services.gr00t.checkpoint.config import load_config
from services.gr00t.checkpoint.directory import CheckpointDirectory, find
from services.gr00t.export import comparison
from services.gr00t.export.__main__ import cut, show
from services.gr00t.service.layout import Layout, layout
from services.gr00t.service.loading import load_own_policy
from services.gr00t.service.settings import Settings
from tests.gr00t.upstream import package
from vla_contract import Observation, Policy

ENVIRONMENT = "gr00t"
BATCH = 8


def main() -> None:
    """Prints the tables and the FIGURE lines."""
    parser = flags("GR00T N1.5: our engine against upstream's code.", "the tiny checkpoint alone, and fewer rounds")
    options = parser.parse_args()
    rounds = 8 if options.quick else 30
    with tempfile.TemporaryDirectory() as directory:
        for size in ("tiny",) if options.quick else ("tiny", "mid"):
            checkpoint = find(str(tiny.make(Path(directory) / size, "libero", spec=tiny.SPECS[size])))
            embodiment = checkpoint.embodiment()
            sizes = layout(embodiment, checkpoint.metadata[embodiment.tag])
            policies = {
                name: load_own_policy(Settings(device="cpu", dtype=name), checkpoint, sizes)
                for name in ("fp32", "bf16")
            }
            single_action(size, {**policies, **upstream(checkpoint, sizes)}, sizes, rounds)
            policy, seen = policies["fp32"], [observed(sizes, seed) for seed in range(BATCH)]
            sides = {
                "one by one": lambda policy=policy, seen=seen: [policy.act([observation]) for observation in seen],
                "together": lambda policy=policy, seen=seen: policy.act(seen),
            }
            interleaved(sides, max(3, rounds // 4), f"{BATCH} observations")
            print(f"\n{size}: the exported modules")
            exported, _ = cut(checkpoint, load_config(checkpoint.directory), torch.float32)
            directory_of_size = Path(directory) / f"{size}-onnx"
            rows = [comparison.measure(part, comparison.export(part, directory_of_size), rounds) for part in exported]
            show(rows)
            figure(f"gr00t_onnx_apart_{size}", max(row.apart for row in rows), "share", "<=1e-4", quick=True)
        loading(find(str(Path(directory) / "tiny")), Path(directory))


def upstream(checkpoint: CheckpointDirectory, sizes: Layout) -> dict[str, Policy]:
    """Return the other side by its name; nothing where its code is not here, which is said."""
    if (reason := package.missing()) is not None:
        print(f"upstream is left out: {reason}")
        return {}
    from tests.gr00t.upstream.policy import load_upstream_policy

    return {"upstream": load_upstream_policy(Settings(device="cpu"), checkpoint, sizes)}


def observed(sizes: Layout, seed: int = 0) -> Observation:
    """Return an observation of random images and state."""
    draw = np.random.default_rng(seed)
    images = {name: draw.integers(0, 256, (*sizes.image_hw, 3), np.uint8) for name in sizes.embodiment.cameras}
    state = draw.normal(size=sizes.state_size).astype(np.float32)
    return Observation(images, state, "put the bowl on the stove", f"bench.0.{seed}.0.a", 0)


def single_action(size: str, sides: dict[str, Policy], sizes: Layout, rounds: int) -> None:
    """Time single observations, all sides alternately."""
    seen = observed(sizes)
    calls = {name: (lambda policy=policy: policy.act([seen])) for name, policy in sides.items()}
    title = f"{size}: one action, {torch.get_num_threads()} threads"
    seconds = interleaved(calls, rounds, title, warmup=3)
    if "upstream" in seconds:
        for name in ("fp32", "bf16"):
            target = ">=2" if (size, name) == ("tiny", "fp32") else ">=1"
            figure(f"gr00t_over_upstream_{size}_{name}", seconds.ratio("upstream", name), "ratio", target, quick=True)


if __name__ == "__main__":
    main()
