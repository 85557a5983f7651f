"""What is useful after a task that went well: one command, told to people at a terminal and not to scripts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping

from vlalab.commands import evaluation
from vlalab.description import checkpoints, compose, manifests, runs
from vlalab.host import paths
from vlalab.host.console import say
from vlalab.runtimes import both
from vlalab.tasks.values import split

Given = Mapping[str, object]  # the task's flags, read

EVALUATE = "./lab eval libero_goal --trials 2"
AFTER: dict[str, str | Callable[[Given], str]] = {
    "eval": lambda given: _after_evaluating(),
    "runs": lambda given: f"./lab report {runs.newest()[0]} --serve" if runs.newest() else EVALUATE,
    "report": lambda given: _after_report(given),
    "compare": "./lab runs",
    "assets": EVALUATE,
    "up": lambda given: _after_up(given),
    "down": "./lab status",
    "restart": "./lab status",
    "status": lambda given: _after_status(),
    "logs": "./lab status",
    "shell": "./lab status",
    "checkpoint": lambda given: f"./lab up {given['model']} --checkpoint {given.get('name') or _newest_of(given)}",
    "verify": lambda given: f"./lab up {given['model']} --checkpoint {_verified(given)}",
    "train": lambda given: _after_training(given),
    "translate": "./lab tensorboard",
    "sample": lambda given: f"./lab score diffusion{_name(given)}",
    "score": "./lab tensorboard",
    "check": "./lab check (all exercises, and how far you are)",
    "tensorboard": "./lab down tensorboard",
    "test": EVALUATE,
    "build": lambda given: f"./lab up {_service_of(given)} --runtime docker",
    "bundle": lambda given: f"./lab restore {_file(given)} (on the other machine)",
    "restore": EVALUATE,
    "clean": "./lab status",
    "bench": "./lab bench NAME (results: bench/RESULTS.md)",
    "env": lambda given: f"./lab up {_service_of(given)}",
    "lock": "./lab lock --check",
}


def tell(task: str, given: Given) -> None:
    """Says what is useful next, where a person sits; a dry run has changed nothing that could be gone on from."""
    if task in AFTER and sys.stderr.isatty() and not given.get("dry_run"):
        after = AFTER[task]
        say(f"next: {after if isinstance(after, str) else after(given)}")


def _after_up(given: Given) -> str:
    names = given.get("names") or []
    policies = [name for name in names if name in evaluation.policies()]
    return "./lab eval libero_goal --policy " + policies[0] if policies else "./lab status"


def _after_training(given: Given) -> str:
    if given["lab"] == "diffusion":
        return f"./lab sample diffusion{_name(given)}"
    return f'./lab translate "The door is open."{_name(given)}'


def _after_evaluating() -> str:
    """Returns the comparison with the latest other run of its suite, else the run's report."""
    last, *before = runs.newest() or ["latest"]
    others = [name for name in before if name.split("-")[0] == last.split("-")[0]]
    return f"./lab compare {others[0]} {last}" if others else f"./lab report {last} --serve"


def _after_report(given: Given) -> str:
    """Returns how to see it in a browser; the service shows what lies on the volume, by name."""
    if given.get("serve"):
        return "./lab down reports"
    return "./lab runs" if "/" in str(given["run"]) else f"./lab report {given['run']} --serve"


def _after_status() -> str:
    up = [found.name for found in both.instances() if not found.attached]
    return f"./lab logs {up[0]}" if up else "./lab up oracle"


def _newest_of(given: Given) -> str:
    """Returns the checkpoint of a model that was written last."""
    model, folder = str(given["model"]), paths.volume() / "checkpoints"
    there = checkpoints.there(model) if model in manifests.models() else []
    return max(there, key=lambda name: (folder / name).stat().st_mtime, default="NAME")


def _service_of(given: Given) -> str:
    """Returns the first service that lives in one of the environments that were named, the oracle without a name."""
    names = given.get("names") or []
    lives = [name for name, one in compose.read().items() if one.role != "job" and one.environment_name in names]
    return lives[0] if lives else "oracle"


def _file(given: Given) -> str:
    return split(str(given.get("words") or "FILE"))[-1]


def _verified(given: Given) -> str:
    return shlex.quote(str(given.get("checkpoint") or _newest_of(given)))


def _name(given: Given) -> str:
    return f" --name {given['name']}" if given.get("name") else ""
