"""What LeRobot's configuration files do not state about their policy types. Imports neither torch nor LeRobot."""

from __future__ import annotations

from vla_contract.protocol.errors import did_you_mean

# Types of which a random checkpoint can be built small.
TINY = (
    "act", "diffusion", "eo1", "evo1", "multi_task_dit", "smolvla", "tdmpc", "vla_jepa", "vqbet", "xvla",
)  # fmt: skip

# Types of which it cannot → why.
NOT_TINY = {
    "fastwam": "the video model and text encoder that it reads are named in LeRobot's code, in their full size",
    "gaussian_actor": "it is an actor for reinforcement learning, without action chunks",
    "groot": "its sizes come from a GR00T N1.7 directory with NVIDIA's own processor and statistics files",
    "lingbot_va": "it reads its video model and text encoder from the published directories, in their full size",
    "molmoact2": "its sizes come from a MolmoAct2 directory with its own processor and statistics files",
    "pi0": "its sizes are gemma_2b and gemma_300m only, 7 GB in bf16",
    "pi05": "its sizes are gemma_2b and gemma_300m only, 7 GB in bf16",
    "pi0_fast": "its sizes are gemma_2b and gemma_300m only, and its action tokenizer is code of a repository",
    "wall_x": "it needs torchdiffeq and qwen-vl-utils, and its action tokenizer is code of a repository",
}

# Fields of other versions that do not change what a model computes: dropped. Others are refused.
HARMLESS_FIELDS = frozenset(
    {"gradient_checkpointing", "license", "private", "push_to_hub", "repo_id", "tags", "use_peft"}
)
HARMLESS_PREFIXES = ("optimizer_", "scheduler_")

# Types that run code from a repository (transformers' trust_remote_code): that of the FAST action tokenizer.
REMOTE_CODE = frozenset({"pi0_fast", "wall_x"})

# Types whose actions are poses; all others answer the differences or targets of their data set.
ABSOLUTE_POSES = frozenset({"xvla"})

# Types that sample noise: their observations are computed one by one, each from its own seed.
STOCHASTIC = frozenset((set(TINY) | NOT_TINY.keys()) - {"act", "pi0_fast"})


def check_tiny(kind: str) -> None:
    """Raise ValueError for a type of which no small random checkpoint can be built."""
    if kind in NOT_TINY:
        raise ValueError(f"--type {kind}: no tiny checkpoint, since {NOT_TINY[kind]}; choose {', '.join(TINY)}")
    if kind not in TINY:
        raise ValueError(f"--type {kind!r} not found{did_you_mean(kind, TINY)}")
