"""What a run's identity says of code, packages and renderer: all that a worker really is made of."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from services.libero.benchmark import BENCHMARK
from services.libero.profiles import PROFILES
from tests.libero.harness import ENVIRONMENT, ROOT, TIMEOUT_S
from vla_common import driver
from vla_common.versions import versions
from vla_contract import PolicyInfo
from vla_contract.protocol.parts import OSC_POSE
from vla_evaluation import imports, provenance
from vla_evaluation.benchmark import Assets
from vla_evaluation.config import EvalConfig, differences
from vla_evaluation.plan import describe, identify, make_plan, specify
from vla_evaluation.report.data import comparability_problem
from vla_evaluation.spec import RunSpec

ENTRIES = (provenance.WORKER, BENCHMARK.module)
CLOSURE = sorted(imports.closure(ENTRIES, BENCHMARK.uncounted))
DRAWS_AND_MOVES = [
    *(f"services.libero.simulator.{name}" for name in (
        "env", "privileged", "problem", "robots", "runtime", "suites",
    )),
    *(f"fast_libero.{name}" for name in ("control", "initstates", "resets", "startup")),
    *(f"fast_libero.rendering.{name}" for name in (
        "compositor", "culling", "layers", "renderer", "stage",
    )),
    *(f"vla_evaluation.{name}" for name in (
        "actions", "pictures.images", "pictures.transforms", "profiles", "rollout", "spec", "workers.worker",
    )),
    "services.libero.benchmark", "services.libero.profiles", "vla_common.gl",
    *(f"vla_contract.{name}" for name in ("client.client", "protocol.codec", "protocol.types")),
]  # fmt: skip


class Copy:
    """The project's modules in a place where they can be changed; `forget` undoes what was."""

    def __init__(self, directory):
        self.directory, self.before = directory, {}
        for name, place in imports.PACKAGES.items():
            shutil.copytree(place, directory / name, ignore=shutil.ignore_patterns("__pycache__"))

    def add(self, module, text):
        path = imports.source_of(module)
        assert path.is_relative_to(self.directory)
        self.before.setdefault(path, path.read_text())
        path.write_text(path.read_text() + text)

    def forget(self):
        for path, text in self.before.items():
            path.write_text(text)
        self.before.clear()


@pytest.fixture(scope="module")
def one_copy(tmp_path_factory):
    return Copy(tmp_path_factory.mktemp("copied"))


@pytest.fixture
def copied(one_copy, monkeypatch):
    """A copy of the project's modules, looked at instead of them. What imports what is the same in both."""
    for name in dict(imports.PACKAGES):
        monkeypatch.setitem(imports.PACKAGES, name, one_copy.directory / name)
    yield one_copy
    one_copy.forget()


def test_a_copy_has_the_same_digest(copied):
    assert provenance.code_digest(BENCHMARK) == imports.code_digest(ENTRIES, BENCHMARK.uncounted)
    assert str(imports.source_of(provenance.WORKER)).startswith(str(copied.directory))


@pytest.mark.parametrize("module", DRAWS_AND_MOVES)
def test_changed_worker_source_changes_the_digest(copied, module):
    before = provenance.code_digest(BENCHMARK)
    copied.add(module, "# changed\n")
    assert provenance.code_digest(BENCHMARK) != before


@pytest.mark.parametrize("module", ["vla_evaluation.report.page", "services.libero.assets.sources",
                                    "services.libero.oracle.plan", "vla_contract.server.serving"])  # fmt: skip
def test_modules_outside_the_worker_do_not_count(copied, module):
    before = provenance.code_digest(BENCHMARK)
    copied.add(module, "# changed\n")
    assert provenance.code_digest(BENCHMARK) == before


def test_new_module_counts_once_imported(copied):
    before = provenance.code_digest(BENCHMARK)
    new = copied.directory / "fast_libero/rendering/tint.py"
    new.write_text("level = 3\n")
    assert provenance.code_digest(BENCHMARK) == before
    copied.add("fast_libero.rendering.stage", "\ndef tint():\n    from . import tint\n    return tint.level\n")
    imports._imported.cache_clear()
    try:
        assert "fast_libero.rendering.tint" in imports.closure(ENTRIES)
    finally:
        new.unlink()
        imports._imported.cache_clear()


def test_nothing_of_it_lies_outside_the_tree():
    assert all(imports.source_of(module).is_relative_to(ROOT) for module in CLOSURE)


# --- packages -------------------------------------------------------------------------------------------------


def test_this_environment_is_that_of_its_lock():
    assert provenance.off_lock() == []


def test_package_of_another_version_is_listed(tmp_path):
    lock = tmp_path / "requirements.lock"
    text = provenance.LOCK.read_text()
    lock.write_text(re.sub(r"^(scipy|pyyaml)==\S+", r"\1==0.0.1", text, flags=re.MULTILINE) + "absent-package==1.0\n")
    named = provenance.off_lock(lock)
    assert [line.split(" ")[0] for line in named] == ["pyyaml", "scipy"]
    assert all("(lock: 0.0.1" in line for line in named)


NOWHERE = "http://127.0.0.1:1"
PROGRAMS = {
    "evaluator": ["-m", "services.libero", "libero_goal", "--policy-url", NOWHERE, "--policy-timeout-s", "1"],
    "recording": ["-m", "services.libero", "record", "libero_goal", "--policy-url", NOWHERE, "--policy-timeout-s", "1"],
    "joining": ["-m", "services.libero", "join", NOWHERE],
    "simulator": ["-m", "services.libero.live", "--host", "127.0.0.1", "--port", "0", "--policies", "x=y"],
    "notebook": ["-c", "from services.libero import playing; playing.open_scene()"],
}


def install(directory, name: str, version: str):
    """Make a folder that says, first on PYTHONPATH, that another version of a package is installed."""
    about = directory / f"{name}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(directory), ENVIRONMENT["PYTHONPATH"]])}


def output_of(program: str, variables) -> str:
    done = subprocess.run(
        [sys.executable, *PROGRAMS[program]], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode != 0 or program == "notebook", done.stdout
    return done.stdout + done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_unsupported_simulator_version_is_rejected(program, tmp_path):
    output = output_of(program, install(tmp_path, "robosuite", "1.5.1"))
    assert "robosuite 1.5.1 is installed" in output and "lock: 1.4.0" in output, output
    assert re.search(r"\./lab (env|build) libero", output) and "ImportError" not in output, output


@pytest.mark.parametrize("program", PROGRAMS)
def test_another_mujoco_is_reported_before_the_run(program, tmp_path):
    output = output_of(program, install(tmp_path, "mujoco", "3.3.5"))
    first = output.splitlines()[0]
    assert "mujoco 3.3.5 (lock: 3.2.3)" in first and re.search(r"\./lab (env|build) libero", first), output
    assert "warning" in first.lower() and "published figures" in first


def test_locked_packages_give_no_warning():
    provenance.check_simulator(BENCHMARK, pytest.fail)


OTHERS = {name: {"mujoco": "3.2.3"} for name in PROFILES if name.startswith("lerobot")}  # than their figures': 3.8.1


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_the_lock_pins_what_the_published_figures_need(profile):
    text, pinned = provenance.LOCK.read_text(), {**profile.simulator, **OTHERS.get(profile.name, {})}
    assert all(f"\n{name}=={version} " in text for name, version in pinned.items())
    assert {name: versions(BENCHMARK.packages)[name] for name in profile.simulator} == pinned


def test_other_packages_are_not_comparable_with_published_figures():
    plan = make_plan(BENCHMARK, EvalConfig("libero_goal", profile="openpi"))
    assets = Assets("official", ROOT, "d")
    found = identify(plan, specify(plan, PolicyInfo("openpi", OSC_POSE)), assets)
    assert comparability_problem(found, describe(plan, assets), True, []) == ""
    found["versions"]["mujoco"] = "3.8.1"
    assert comparability_problem(found, describe(plan, assets), True, []) == "other packages (mujoco 3.8.1, not 3.2.3)"


def test_robot_model_is_part_of_the_identity():
    told = {name: identity_of(name)["protocol"].get("robot", "") for name in PROFILES}
    named = {"openvla-oft": "robosuite-1.4.1", "openvla-oft-server": "robosuite-1.4.1", "openpi": "robosuite-1.4.1"}
    assert told == {name: named.get(name, "") for name in PROFILES}
    assert set(identity_of("openvla")["protocol"]) == {  # as before there was any
        "wait_steps", "wait_action", "camera_size", "rotate_180", "jpeg_quality", "image_size", "resize", "crop_area",
    }  # fmt: skip
    spec = RunSpec.from_json(identity_of("lerobot"))
    assert spec.protocol == PROFILES["lerobot"].protocol() and spec.to_json()["protocol"]["extra_resets"] == 1


def identity_of(profile: str) -> dict:
    plan = make_plan(BENCHMARK, EvalConfig("libero_goal", profile=profile))
    return identify(plan, specify(plan, PolicyInfo("p", OSC_POSE)), Assets("kit", ROOT, "d"))


# --- the renderer ---------------------------------------------------------------------------------------------


def identity(cameras=(), **facts):
    plan, kit = make_plan(BENCHMARK, EvalConfig("libero_goal", trials=1, **facts)), Assets("kit", ROOT, "d")
    return identify(plan, specify(plan, PolicyInfo("p", OSC_POSE, cameras=cameras)), kit)


def test_renderer_is_part_of_the_identity_with_cameras(monkeypatch):
    before = identity(("agentview",), render="cpu")
    assert re.search("llvmpipe|softpipe|swrast", before["renderer"])
    monkeypatch.setattr(driver, "ask", lambda render: "NVIDIA H100/PCIe/SSE2, 4.6.0 NVIDIA 550.54")
    assert [line.split(":")[0] for line in differences(before, identity(("agentview",), render="cpu"))] == ["renderer"]


def test_renderer_is_not_part_of_the_identity_without_cameras(monkeypatch):
    monkeypatch.setattr(driver, "ask", lambda render: pytest.fail("nobody has to draw"))
    assert identity()["renderer"] is None


def test_identity_has_the_workers_renderer(libero_env):
    from fast_libero.rendering.renderer import GlContext

    context = GlContext()
    context.make_current()
    assert driver.ask("cpu").startswith(f"{context.renderer}, ")
    context.free()


def test_missing_renderer_reports_the_reason(monkeypatch):
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "77")
    with pytest.raises(ValueError, match=r"cannot render with --render auto: MUJOCO_EGL_DEVICE_ID='77'"):
        driver.ask("auto")
