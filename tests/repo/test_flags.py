"""Flags of `./lab` that come from the options of programs: each is declared once, and complete where it is declared."""

import ast
import json
import re
import subprocess
import sys
from dataclasses import MISSING

import pytest

from vlalab import cli
from vlalab.commands import course
from vlalab.description import manifests
from vlalab.host import paths, shared_code
from vlalab.host.console import LabError
from vlalab.host.shared_code import Interval
from vlalab.tasks.data import CHECKPOINT_OPTIONS
from vlalab.tasks.flags import KINDS, program_flags

ALL = cli.TASKS
PLACES = {
    *(f"vla_evaluation.config:{name}" for name in ("EvalConfig", "RecordConfig")),
    *(place for model in manifests.models().values() for place in model.options.values()),
    *(place for benchmark in manifests.benchmarks().values() for place in benchmark.options.values()),
    *map(course.config, course.labs()),
    *(course.module("diffusion", f"config:{name}") for name in ("SampleRequest", "ScoreRequest")),
    course.module("transformer", "config:TranslateCommand"),
    CHECKPOINT_OPTIONS,
}
OPTIONS = [(place, option) for place in sorted(PLACES) for option in shared_code.options(place).values()]
PUBLIC = [(place, one) for place, one in OPTIONS if one.group != "internal"]


def of_shared(one: object) -> str:
    return one if isinstance(one, str) else getattr(one, "name", "")


def test_there_are_many_of_them():
    assert len(PUBLIC) > 100


@pytest.mark.parametrize(("place", "one"), OPTIONS, ids=of_shared)
def test_an_option_is_complete_where_it_is_declared(place, one):
    assert one.summary and (not one.pattern or one.expected) and one.kind in ("", *KINDS)
    if one.within:
        assert one.type in (int, float) and Interval(one.within)
        assert one.default in (None, MISSING) or one.default in Interval(one.within)
    if one.choices:
        assert one.default in (None, *one.choices)
    assert one.group == "internal" or one.type is not bool or not one.default or one.negated or "config" in place


@pytest.mark.parametrize(("place", "one"), PUBLIC, ids=of_shared)
def test_a_flag_takes_what_the_program_takes_and_says_its_default(place, one):
    (flag,) = program_flags(place, only=[one.name])
    assert flag.name.removeprefix("no_" if one.default is True else "") == one.name
    if one.type is bool:
        assert not flag.default
        return
    if one.choices:
        assert flag.values.choices == tuple(map(str, one.choices))
    elif one.type in (int, float):
        with pytest.raises(LabError, match="is not an integer" if one.type is int else "is not a number"):
            flag.values.read("x", "nonsense")
    if one.default not in (None, "", MISSING) and not one.default_help:
        assert flag.default_help == str(one.default) or float(flag.default_help) == one.default


def test_programs_options_need_the_standard_library_only():
    """`./lab` imports them without the packages of their environments."""
    code = f"""
import sys
from vlalab.host import shared_code
for place in {sorted(PLACES)}:
    shared_code.options(place)
ours = ("vlalab", "services", "vla_", "fast_libero")
known = {{*sys.stdlib_module_names, "_virtualenv", "sitecustomize", "usercustomize", "invoke", "rich", "yaml"}}
print(*{{name.partition(".")[0] for name in sys.modules if not name.startswith(ours)}} - known)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT, capture_output=True, text=True, check=True)
    assert {name for name in done.stdout.split() if not name.startswith("_")} <= {"pygments"}, done.stdout


def test_robots_name_profiles_that_the_benchmark_has():
    robots = (json.loads(path.read_text()) for path in (paths.ROOT / "services/gr00t").rglob("embodiments/*.json"))
    named = {robot["profile"] for robot in robots if "profile" in robot}
    assert named and named <= set(manifests.benchmarks()["libero"].profiles)


# Which tasks run what lies in a folder: only their flags mean something to who reads its messages.
TASKS_OF = {
    "shared/evaluation/vla_evaluation": ("eval", "report", "compare", "runs", "record"),
    "services/libero/simulator": ("eval",),
    "shared/evaluation/vla_evaluation/offline": ("offline", "act"),
    "shared/evaluation/vla_evaluation/audit": ("audit",),
    "services/libero/datasets": ("dataset",),
    "shared/datasets": ("dataset", "data"),
    "services/libero": ("eval", "assets", "up"),
    "services/openvla": ("up", "checkpoint", "verify", "finetune", "dataset"),
    "services/gr00t/data": ("data", "dataset"),
    "services/gr00t": ("up", "checkpoint", "data", "dataset", "finetune"),
    "services/gr00t/export": ("export",),
    "services/ws_mdl/diffusion": ("train", "sample", "score"),
    "services/minivla": ("train", "eval", "dataset"),
    "services/ws_mdl/practice": ("train",),
    "services/ws_mdl": ("train", "translate", "up"),
    "lessons": ("check", "checkpoint", "shell"),
    "services/ui": ("up", "eval", "checkpoint"),
    "shared/modelkit": ("up", "checkpoint", "data", "verify", "train", "finetune"),
    "shared/common": ("up", "eval"),
    "shared/contract": ("up", "eval"),
}  # fmt: skip


def messages(path: str) -> list[str]:
    """Returns the texts in a module that a person may be shown: neither docstrings nor flags that it passes on."""
    tree = ast.parse((paths.ROOT / path).read_text())
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [one for one in ast.walk(tree) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return [text.value for text in texts if id(text) not in silent and not text.value.startswith("--")]


@pytest.mark.parametrize("directory", TASKS_OF)
def test_messages_advise_only_flags_that_the_lab_has(directory):
    known = {flag.flag for task in TASKS_OF[directory] for flag in ALL[task].flags}
    for path in sorted((paths.ROOT / directory).rglob("*.py")):
        name = str(path.relative_to(paths.ROOT))
        if any(name.startswith(f"{inner}/") and len(inner) > len(directory) for inner in TASKS_OF):
            continue
        for text in messages(name):
            assert set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", text)) <= known, f"{name}: {text}"
            assert "invoke " not in text, f"{name}: {text}"
