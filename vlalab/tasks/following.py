"""What is useful after a task that went well: one command or address, told at a terminal and not to scripts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping

from vlalab.commands import addresses, course, evaluation, lifecycle, programs
from vlalab.description import checkpoints, compose, manifests, runs
from vlalab.host import paths
from vlalab.host.console import say
from vlalab.runtimes import both, steward
from vlalab.tasks.values import split

Given = Mapping[str, object]  # the task's flags, read

HOME = manifests.default_environment()
EVALUATE = "./lab eval libero_goal --trials 2"
TENSORBOARD = "tensorboard"
IN_A_BROWSER = (steward.PAGE, *manifests.notebooks().values(), TENSORBOARD)
AFTER: dict[str, str | Callable[[Given], str]] = {
    "eval": lambda given: _after_evaluating(),
    "runs": lambda given: f"./lab report {runs.newest()[0]} --serve" if runs.newest() else EVALUATE,
    "report": lambda given: _after_report(given),
    "compare": lambda given: _after_comparing(given),
    "leaderboard": lambda given: _open(steward.PAGE, "/runs/leaderboard") or "./lab up ui",
    "assets": EVALUATE,
    "record": lambda given: f"./lab dataset {given['name'] or _recorded()} --format lerobot",
    "dataset": lambda given: _after_dataset(given),
    "data": lambda given: f"./lab data {given['model']} --dataset {_read(given)} --check",
    "offline": lambda given: f"./lab act {given['policy']} --dataset {shlex.quote(str(given['dataset']))} --index 0",
    "act": lambda given: f"./lab offline {given['policy']} --dataset {shlex.quote(str(given['dataset']))} --plot",
    "up": lambda given: _after_up(given),
    "down": lambda given: _after_down(given),
    "restart": lambda given: _after_up(given) if given["names"] else _after_status(),
    "status": lambda given: _after_status(),
    "logs": lambda given: _after_logs(str(given["name"])),
    "shell": "./lab status",
    "checkpoint": lambda given: f"./lab up {given['model']} --checkpoint {given.get('name') or _newest_of(given)}",
    "export": "./lab bench gr00t",
    "verify": lambda given: f"./lab up {given['model']} --checkpoint {_verified(given)}",
    "train": lambda given: _after_training(given),
    "learn": lambda given: f"./lab report learn-{given['name'] or given['suite']} --serve",
    "finetune": lambda given: _after_finetuning(given),
    "translate": lambda given: _after_translating(given),
    "sample": lambda given: f"./lab score diffusion{_name(given)}",
    "score": lambda given: f"./lab sample diffusion{_name(given)} --compare",
    "course": "./lab runs",
    "check": "./lab check",
    "notebook": lambda given: _after_up({"names": [manifests.notebooks()[str(given["env"])]]}),
    "tensorboard": lambda given: _after_up({"names": [TENSORBOARD]}),
    "test": EVALUATE,
    "doctor": lambda given: EVALUATE if given["names"] else f"./lab doctor {HOME}",
    "build": lambda given: f"./lab up {_service_of(given)} --runtime docker",
    "bundle": lambda given: f"./lab restore {_file(given)}",
    "restore": EVALUATE,
    "clean": lambda given: f"./lab env {HOME}" if given["venvs"] else "./lab clean --venvs --dry-run",
    "bench": lambda given: f"./lab bench {_next_benchmark(given)}",
    "env": lambda given: f"./lab up {_service_of(given)}",
    "lock": lambda given: _after_locking(given),
    "host": lambda given: f"./lab fleet doctor --hosts {_names(given)}" if given["hosts"] else "./lab doctor",
    "fleet": "./lab fleet status",
    "support": "./lab doctor",
    "cluster": lambda given: _after_cluster(str(given.get("words"))),
}


def tell(task: str, given: Given) -> None:
    """Says what is useful next, where a person sits; a dry run has changed nothing that could be gone on from."""
    if task in AFTER and sys.stderr.isatty() and not given.get("dry_run"):
        after = AFTER[task]
        say(f"next: {after if isinstance(after, str) else after(given)}")


def _after_cluster(words: str) -> str:
    return "./lab cluster start" if words == "stop" else "./lab eval libero_goal --cluster"


def _names(given: Given) -> str:
    return ",".join(one.name for one in given["hosts"])


def _recorded() -> str:
    return next(iter(runs.newest("demonstrations")), "NAME")


def _read(given: Given) -> str:
    """Returns the data set that was looked at, or downloaded."""
    return shlex.quote(str(given["dataset"] or str(given["download"]).rpartition("/")[2]))


def _after_dataset(given: Given) -> str:
    """Returns the check of what was made, then its page."""
    name = given["name"] or given["source"]
    return f"./lab dataset {name} --show" if given["check"] else f"./lab dataset {name} --check"


def _open(service: str, path: str = "") -> str:
    """Returns what to open of a service that a browser shows; "" where it is not up."""
    found = both.find(service)
    if not found or not found.is_healthy():
        return ""
    return f"open {addresses.page_of(found)}{path}" if path else f"open {addresses.with_token(found)}"


def _after_up(given: Given) -> str:
    names = given.get("names") or []
    pages = [page for name in IN_A_BROWSER if name in names and (page := _open(name))]
    policies = [f"./lab eval libero_goal --policy {name}" for name in names if name in evaluation.policies()]
    return [*pages, *policies, "./lab status"][0]


def _after_down(given: Given) -> str:
    """Returns how to bring back what was named; a private policy has no way back."""
    known = lifecycle.long_lived()
    back = [name for name in given["names"] or [] if name in known]
    return f"./lab up {' '.join(back)}" if back else _after_status()


def _after_logs(name: str) -> str:
    """Returns how to start what has ended, to restart what does not answer, to use or to see what is well."""
    if name not in lifecycle.long_lived():  # a private policy's, kept for who looks why it ended
        return "./lab status"
    found = both.find(name)
    if found is None:
        return f"./lab up {name}"
    return _after_up({"names": [name]}) if found.is_healthy() else f"./lab restart {name}"


def _after_translating(given: Given) -> str:
    """Returns the same with its pictures; after those, the curves of its training."""
    again = f"./lab translate {shlex.quote(str(given['sentence']))}{_name(given)} --pictures"
    return "./lab tensorboard" if given["pictures"] else again


def _next_benchmark(given: Given) -> str:
    """Returns the whole of one that was run quickly, else the next one."""
    names, name = programs.benchmarks(), str(given["benchmark"])
    return name if given["quick"] else names[(names.index(name) + 1) % len(names)]


def _after_locking(given: Given) -> str:
    """Returns how to make the environment of a new lock; the quick tests where there is none, or nothing was made."""
    made = [name for name in given["names"] or [] if name in manifests.environments() and not given["check"]]
    return f"./lab env {' '.join(made)}" if made else "./lab test --quick"


def _after_training(given: Given) -> str:
    if given["lab"] == "minivla":
        return "./lab eval libero_object --policy minivla"
    if given["lab"] == "diffusion":
        return f"./lab sample diffusion{_name(given)}"
    if given["lab"] in course.practice():
        return "./lab tensorboard"
    return f'./lab translate "The door is open."{_name(given)}'


def _after_finetuning(given: Given) -> str:
    return f"./lab up {given['model']} --checkpoint {given.get('name') or _newest_of(given)}"


def _after_evaluating() -> str:
    """Returns the run's page where the pages are up, else how to compare it with the latest of its suite, or see it."""
    last, *before = runs.newest() or ["latest"]
    if page := _open(steward.PAGE, f"/runs/{last}"):
        return page
    others = [name for name in before if name.split("-")[0] == last.split("-")[0]]
    return f"./lab compare {others[0]} {last}" if others else f"./lab report {last} --serve"


def _after_report(given: Given) -> str:
    """Returns how to see it in a browser; the service shows what lies on the volume, by name."""
    if given.get("serve"):
        return _after_up({"names": [addresses.PAGES]})
    known, run = runs.newest(), str(given["run"])
    run = known[0] if run == "latest" and known else run
    page = _open(steward.PAGE, f"/runs/{run}") if run in known else ""
    return page or ("./lab runs" if "/" in run else f"./lab report {run} --serve")


def _after_comparing(given: Given) -> str:
    known = {given["a"], given["b"]} <= {*runs.newest()}
    page = _open(steward.PAGE, f"/runs/compare?a={given['a']}&b={given['b']}") if known else ""
    return page or _after_report({"run": given["b"]})


def _after_status() -> str:
    up = [found.name for found in both.instances() if not found.attached]
    return f"./lab logs {up[0]}" if up else "./lab up oracle"


def _newest_of(given: Given) -> str:
    """Returns the checkpoint of a model that was written last."""
    model, folder = str(given["model"]), paths.volume() / "checkpoints"
    there = checkpoints.there(model) if model in manifests.models() else []
    return max(there, key=lambda name: (folder / name).stat().st_mtime, default="NAME")


def _service_of(given: Given) -> str:
    """Returns the service of an environment that was named, of its name if there is one; the oracle without a name."""
    names = given.get("names") or []
    lives = [name for name, one in compose.read().items() if one.role != "job" and one.environment_name in names]
    return min(lives, key=lambda name: name not in names, default="oracle")


def _file(given: Given) -> str:
    return split(str(given.get("words") or "FILE"))[-1]


def _verified(given: Given) -> str:
    return shlex.quote(str(given.get("checkpoint") or _newest_of(given)))


def _name(given: Given) -> str:
    return f" --name {given['name']}" if given.get("name") else ""
