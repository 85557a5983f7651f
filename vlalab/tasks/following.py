"""What is useful after a task that went well: one command, told to people at a terminal and not to scripts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from vlalab.commands import evaluation
from vlalab.description import manifests
from vlalab.host.console import say

Given = Mapping[str, object]  # the task's flags, read

EVALUATE = "./lab eval libero_goal --trials 2"
AFTER: dict[str, str | Callable[[Given], str]] = {
    "eval": "./lab runs",
    "runs": "./lab report latest",
    "report": "./lab runs",
    "compare": "./lab runs",
    "assets": EVALUATE,
    "up": lambda given: _after_up(given),
    "down": "./lab status",
    "restart": "./lab status",
    "status": "./lab logs SERVICE",
    "logs": "./lab status",
    "shell": "./lab status",
    "checkpoint": lambda given: f"./lab up {given['model']} --checkpoint NAME",
    "verify": lambda given: f"./lab up {given['model']} --checkpoint NAME",
    "train": lambda given: _after_training(given),
    "translate": "./lab tensorboard",
    "sample": "./lab score diffusion",
    "score": "./lab tensorboard",
    "check": "./lab check (all exercises, and how far you are)",
    "tensorboard": "./lab down tensorboard",
    "test": EVALUATE,
    "build": "./lab up oracle --runtime docker",
    "bundle": "./lab restore FILE (on the other machine)",
    "restore": EVALUATE,
    "clean": "./lab status",
    "bench": "./lab bench NAME (results: bench/RESULTS.md)",
    "env": "./lab status",
    "lock": "./lab lock --check",
}


def tell(task: str, given: Given) -> None:
    """Says what is useful next, where a person sits; a dry run has changed nothing that could be gone on from."""
    if task in AFTER and sys.stderr.isatty() and not given.get("dry_run"):
        after = AFTER[task]
        say(f"next: {after if isinstance(after, str) else after(given)}")


def _after_up(given: Given) -> str:
    names = given.get("names") or []
    evaluated = [name for name, one in manifests.services().items() if one.is_evaluated]
    policies = [name for name in names if name in evaluated and name in evaluation.policies()]
    return "./lab eval libero_goal --policy " + policies[0] if policies else "./lab status"


def _after_training(given: Given) -> str:
    name = f" --name {given['name']}" if given.get("name") else ""
    if given["lab"] == "diffusion":
        return f"./lab sample diffusion{name}"
    return f'./lab translate "The door is open."{name}'
