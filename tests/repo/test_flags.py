"""Flags of `./lab` held against the programs that they are passed to: what help says of a default is what happens."""

import ast
import json
import re

import pytest

from vlalab import cli
from vlalab.commands import course
from vlalab.description import declared, manifests
from vlalab.description.declared import Field
from vlalab.host import paths
from vlalab.tasks.values import Number, OneOf, Several

ALL = {task.name: task for group in cli.load_tasks().GROUPS.values() for task in group}
PROGRAMS = {
    "eval": [("shared/evaluation/vla_evaluation/config.py", name) for name in ("RunConfig", "EvalConfig")],
    "record": [("shared/evaluation/vla_evaluation/config.py", "RunConfig"),
               ("shared/evaluation/vla_evaluation/recording/config.py", "RecordConfig")],
    **{task: [("services/libero/offline/__main__.py", "Asked")] for task in ("offline", "act")},
    "checkpoint": [("shared/modelkit/vla_modelkit/getting.py", "GetCheckpoint"),
                   ("services/gr00t/checkpoints.py", "Get")],
    "export": [("services/gr00t/export/__main__.py", "Export")],
    "finetune": [("services/gr00t/training/settings.py", "Finetune")],
    "sample": [("services/ws_mdl/diffusion/sample.py", "Request")],
    "score": [("services/ws_mdl/diffusion/score.py", "Request")],
    "translate": [("services/ws_mdl/transformer/translate.py", "TranslateCommand")],
    "train": [(course.config_file(lab), "Config") for lab in course.LABS],
    "verify": [("services/openvla/verify.py", "VerifySettings")],
}  # fmt: skip
SHARED = [
    (task, flag, field)
    for task, places in PROGRAMS.items() for path, name in places
    for field in declared.fields(paths.ROOT / path, name).values()
    for flag in ALL[task].flags if flag.variable == field.name
]  # fmt: skip


def of_shared(one: object) -> str:
    return one if isinstance(one, str) else getattr(one, "name", "")


@pytest.mark.parametrize(("task", "flag", "field"), SHARED, ids=of_shared)
def test_the_default_that_help_says_is_the_programs(task, flag, field: Field):
    if field.default is None or field.default in ("", False) or (task, field.name) == ("train", "epochs"):
        return
    says = flag.otherwise or str(flag.default)
    assert says == str(field.default) or float(says) == field.default


@pytest.mark.parametrize(("task", "flag", "field"), SHARED, ids=of_shared)
def test_a_flag_takes_what_the_program_takes(task, flag, field: Field):
    if field.choices:
        serves = {str(one) for name, same, other in SHARED if (name, same) == (task, flag) for one in other.choices}
        assert isinstance(flag.values, OneOf) and set(flag.values.known) == serves
    kind = field.type.split(" ")[0]
    if kind in ("int", "float"):
        assert isinstance(flag.values, Number) and flag.values.kind.__name__ == kind
    if kind == "bool":
        assert flag.is_switch


def test_there_are_many_of_them():
    assert len(SHARED) > 50 and {task for task, _, _ in SHARED} == set(PROGRAMS)


def keys_of(path: str, name: str) -> set[str]:
    """Returns the keys of a table in a module, wherever its literal stands."""
    for node in ast.parse((paths.ROOT / path).read_text()).body:
        target = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [None])[0]
        if getattr(target, "id", "") == name:
            table = next(one for one in ast.walk(node.value) if isinstance(one, ast.Dict))
            return {ast.literal_eval(key) for key in table.keys}
    raise AssertionError(f"{path} defines no {name}")


def test_profiles_and_modes_are_the_programs():
    theirs = keys_of("services/libero/profiles.py", "PROFILES")
    libero = manifests.benchmarks()["libero"]
    assert set(libero.profiles) == theirs
    robots = (json.loads(path.read_text()) for path in (paths.ROOT / "services/gr00t").rglob("embodiments/*.json"))
    assert {robot["profile"] for robot in robots if "profile" in robot} <= theirs
    assert libero.cameras == declared.constant(paths.ROOT / "services/libero/benchmark.py", "CAMERAS")
    (modes,) = [flag.values for flag in ALL["verify"].flags if flag.name == "modes"]
    assert isinstance(modes, Several)
    assert set(modes.of.known) - {"auto", "all"} == keys_of("services/openvla/verify.py", "MODES") - {"auto"}


def test_bounds_are_the_evaluators():
    text = (paths.ROOT / "shared/evaluation/vla_evaluation/config.py").read_text()
    bounds = re.findall(r"(?:least = |require\()(\{.*?\})", text, re.DOTALL)
    least = {name: bound for found in bounds for name, bound in ast.literal_eval(found).items()}
    assert len(least) > 5
    for name, bound in least.items():
        (flag,) = [flag for flag in ALL["eval"].flags if flag.variable == name] or [None]
        if flag:
            assert flag.values.allowed.startswith(f"[{bound}, "), name


# Which tasks run what lies in a folder: only their flags mean something to who reads its messages.
TASKS_OF = {
    "shared/evaluation/vla_evaluation": ("eval", "report", "compare", "runs", "record"),
    "services/libero/simulator": ("eval",),
    "services/libero/offline": ("offline", "act"),
    "services/libero/datasets": ("dataset",),
    "shared/datasets": ("dataset", "data"),
    "services/libero": ("eval", "assets", "up"),
    "services/openvla": ("up", "checkpoint", "verify"),
    "services/gr00t/data": ("data", "dataset"),
    "services/gr00t": ("up", "checkpoint", "data", "dataset", "finetune"),
    "services/gr00t/export": ("export",),
    "services/ws_mdl/diffusion": ("train", "sample", "score"),
    "services/ws_mdl/minivla": ("train", "eval"),
    "services/ws_mdl/practice": ("train",),
    "services/ws_mdl": ("train", "translate", "up"),
    "lessons": ("check", "checkpoint", "shell"),
    "services/ui": ("up", "eval", "checkpoint"),
    "shared/modelkit": ("up", "checkpoint", "data", "verify", "train"),
    "shared/common": ("up", "eval"),
    "shared/contract": ("up", "eval"),
}  # fmt: skip


def messages(path: str) -> list[str]:
    """Returns the texts in a module that a person may be shown: neither docstrings nor flags that it passes on."""
    tree = ast.parse((paths.ROOT / path).read_text())
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [one for one in ast.walk(tree) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return [one.value for one in texts if id(one) not in silent and not one.value.startswith("--")]


@pytest.mark.parametrize("folder", TASKS_OF)
def test_messages_advise_only_flags_that_the_lab_has(folder):
    known = {flag.name for task in TASKS_OF[folder] for flag in ALL[task].flags}
    for path in sorted((paths.ROOT / folder).rglob("*.py")):
        name = str(path.relative_to(paths.ROOT))
        if any(name.startswith(f"{inner}/") and len(inner) > len(folder) for inner in TASKS_OF):
            continue
        for text in messages(name):
            assert set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", text)) <= known, f"{name}: {text}"
            assert "invoke " not in text, f"{name}: {text}"
