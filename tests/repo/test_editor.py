"""What an editor reads (.vscode, .devcontainer), held against compose.yaml, manifests and tasks."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from vlalab import cli
from vlalab.commands import course
from vlalab.description import compose, manifests
from vlalab.host import paths

ROOT = paths.ROOT
LISTS = {name: f"${{env:{name}}}" for name in compose.discovered({})}  # what ./lab fills in
SERVICES = {name: one for name, one in compose.read(variables=LISTS).items() if one.role != "job"}
DOCKERFILE = (ROOT / "images" / "Dockerfile").read_text()


def read(name: str) -> dict:
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


LAUNCH = {one["name"]: one for one in read(".vscode/launch.json")["configurations"]}
CONTAINERS = {path.parent.name: path for path in (ROOT / ".devcontainer").glob("*/devcontainer.json")}


DEBUGGED = [name.removeprefix("service ") for name in LAUNCH if name.startswith("service ")]


def test_the_labs_own_services_can_be_debugged():
    """One that is added elsewhere, with its folder and its block in compose.yaml, need not touch the editor's files."""
    assert len(DEBUGGED) >= 13 and set(DEBUGGED) <= set(SERVICES)


@pytest.mark.parametrize("name", DEBUGGED)
def test_a_service_is_debugged_as_compose_runs_it(name):
    one, service = LAUNCH[f"service {name}"], SERVICES[name]
    assert (one["module"], one["python"]) == (service.command[2], interpreter(service.environment_name))
    here = [re.sub(r"((?:^|=)http://)[a-z]\w*:|^0\.0\.0\.0$", r"\g<1>127.0.0.1:", word) for word in service.command[3:]]
    here = [word.removesuffix(":") for word in here]
    assert one["args"] == [word or "${input:run}" for word in here]


def interpreter(environment: str) -> str:
    return f"${{workspaceFolder}}/images/{environment}/.venv/bin/python"


def test_every_lab_and_lesson_can_be_debugged():
    labs = [(f"lab train {lab}", course.module(lab, "train")) for lab in course.labs()]
    files = (ROOT / "lessons").glob("*.py")
    lessons = [(f"lesson {path.stem}", f"lessons.{path.stem}") for path in files if "__name__ ==" in path.read_text()]
    assert len(labs) >= 6 and len(lessons) >= 3
    for name, module in labs + [
        lesson for lesson in lessons if lesson[0] not in ("lesson vla_server", "lesson gradio_demo")
    ]:
        assert LAUNCH[name]["module"] == module


def test_what_is_debugged_finds_its_packages():
    for one in LAUNCH.values():
        directories = one["env"]["PYTHONPATH"].replace("${workspaceFolder}", str(ROOT)).split(":")
        assert directories == [str(ROOT), *(str(ROOT / directory) for directory in paths.SHARED)]
        if "program" in one:
            continue
        places = [ROOT / directory / one["module"].replace(".", "/") for directory in (".", *paths.SHARED)]
        assert any(path.with_suffix(end).exists() for path in places for end in ("", ".py"))
    assert read(".vscode/settings.json")["python.analysis.extraPaths"] == [str(directory) for directory in paths.SHARED]


def test_every_task_of_the_editor_is_one_of_the_lab():
    theirs = {one["label"]: one for one in read(".vscode/tasks.json")["tasks"]}
    ours = {f"lab {task.name}": task for task in cli.TASKS.values()}
    assert len(theirs) > 25 and set(theirs) <= set(ours)
    for name, one in theirs.items():
        asks = " ${input:words}" if any(flag.is_positional for flag in ours[name].flags) else ""
        assert (one["command"], one["detail"]) == (f"./{name}{asks}", ours[name].short)


def test_every_environment_has_a_container_for_the_editor():
    assert set(CONTAINERS) == set(manifests.environments())


@pytest.mark.parametrize("environment", CONTAINERS)
def test_a_container_is_a_service_of_that_environment_with_its_interpreter(environment):
    one = json.loads(CONTAINERS[environment].read_text())
    files = [(CONTAINERS[environment].parent / name).resolve() for name in one["dockerComposeFile"]]
    assert files == [ROOT / "compose.yaml", ROOT / ".devcontainer" / "compose.yaml"]
    assert SERVICES[one["service"]].environment_name == environment and one["runServices"] == [one["service"]]
    (home,) = set(re.findall(r"VIRTUAL_ENV=(\S+)", DOCKERFILE))
    vscode = one["customizations"]["vscode"]
    assert vscode["settings"]["python.defaultInterpreterPath"] == f"{home}/bin/python"
    assert f"WORKDIR {one['workspaceFolder']}\n" in DOCKERFILE
    assert set(vscode["extensions"]) < set(read(".vscode/extensions.json")["recommendations"])
    beside = yaml.safe_load(files[1].read_text())["services"]
    assert beside[one["service"]]["volumes"] == [f".:{one['workspaceFolder']}"]
