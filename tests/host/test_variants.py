"""Variants of environments: which one a machine gets, and how a choice reaches environments, images and services."""

import shlex
from dataclasses import replace

import pytest

from tests.host.recorded_machine import Recorded
from tests.host.test_doctor_machines import recorded
from vlalab.description import compose, service_settings, variants
from vlalab.doctor import runner
from vlalab.doctor.check import FAIL, PASS, WARN, Context
from vlalab.engine import building, docker, images
from vlalab.environments import venvs
from vlalab.host import nvidia_smi, paths
from vlalab.host.console import LabError
from vlalab.runtimes import containers, local

VARIABLE = "VLALAB_OPENVLA_VARIANT"


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """Returns a function that puts an nvidia-smi on PATH whose GPUs have those compute capabilities."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(docker, "info", dict)

    def put(*capabilities: str) -> None:
        program = tmp_path / "nvidia-smi"
        rows = "\\n".join(capabilities)
        program.write_text(f"#!/bin/sh\ncase \"$*\" in *compute_cap*) printf '{rows}' ;; esac\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        nvidia_smi.capabilities.cache_clear()

    put()
    yield put
    nvidia_smi.capabilities.cache_clear()


# --- the choice ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capabilities", "name"),
    [((), "openvla"), (("8.9",), "openvla"), (("9.0",), "openvla"), (("10.0",), "openvla-cu130"),
     (("12.0",), "openvla-cu130"), (("8.6", "12.1"), "openvla-cu130"), (("[N/A]",), "openvla")],
)  # fmt: skip
def test_the_gpu_decides_where_nobody_does(gpus, capabilities, name):
    gpus(*capabilities)
    assert variants.select("openvla") == variants.select("openvla", "auto") == name
    assert variants.select("libero") == "libero"
    assert variants.select("openvla", "upstream") == "openvla" and variants.select("gr00t", "cu130") == "gr00t-cu130"


def test_an_unknown_variant_names_the_known_ones(gpus):
    with pytest.raises(LabError, match=r"'cu131'.*did you mean 'cu130'"):
        variants.select("openvla", "cu131")
    with pytest.raises(LabError, match="--variant cu130 does not apply to libero"):
        variants.select("libero", "cu130")
    with pytest.raises(LabError, match=r"'cu131'"):
        compose.read(variables={VARIABLE: "cu131"})


# --- what follows from it -----------------------------------------------------------------------------------


def test_a_service_and_its_notebook_use_the_chosen_environment(gpus):
    def environments(variables: dict[str, str]) -> list[str]:
        services = compose.read(variables=variables)
        return [services[name].environment_name for name in ("openvla", "openvla_notebook", "gr00t")]

    assert environments({}) == ["openvla", "openvla", "gr00t"]
    assert environments({VARIABLE: "cu130"}) == ["openvla-cu130", "openvla-cu130", "gr00t"]
    gpus("12.0")
    assert environments({}) == ["openvla-cu130", "openvla-cu130", "gr00t-cu130"]
    assert environments({VARIABLE: "upstream"}) == ["openvla", "openvla", "gr00t-cu130"]


def test_compose_gets_the_image_of_the_variant(gpus):
    assert containers._variables({VARIABLE: "cu130"})[VARIABLE] == "cu130"
    assert containers._variables({VARIABLE: "upstream"})[VARIABLE] == ""
    gpus("12.0")
    assert containers._variables({})[VARIABLE] == "cu130"
    (image,) = {
        body["image"]
        for body in compose.filled("openvla", {"VLALAB_TAG": "x"})
        if isinstance(body, dict) and "image" in body
    }
    assert image == "vla-lab/openvla-cu130:x"


def test_flags_of_up_become_settings_and_a_running_service_differs_by_them(gpus):
    assert service_settings.for_services(["openvla"], None, None, None, {}, "cu130") == {"openvla": {VARIABLE: "cu130"}}
    assert service_settings.for_services(["openvla"], None, None, None, {}, "auto") == {"openvla": {VARIABLE: None}}
    with pytest.raises(LabError, match="--variant applies to gr00t, openvla, not to ui"):
        service_settings.for_services(["ui"], None, None, None, {}, "cu130")
    assert service_settings.differing("openvla", {VARIABLE: ""}, {VARIABLE: "upstream"}) == []
    assert service_settings.differing("openvla", {VARIABLE: ""}, {VARIABLE: "cu130"}) == [VARIABLE]


def test_the_local_runtime_runs_the_variants_python_and_tells_its_programs(gpus):
    command = shlex.split(local.start_command("openvla", {VARIABLE: "cu130"}))
    assert command[0] == f"{paths.ROOT}/images/openvla/cu130/.venv/bin/python"
    env = venvs.get("openvla-cu130")
    assert env.variables()["VLALAB_VARIANT"] == "cu130" and venvs.get("openvla").variables()["VLALAB_VARIANT"] == ""
    assert env.versions == venvs.get("openvla").versions and env.needed_gb() > 10


def test_a_build_is_of_the_variant_and_its_messages_name_the_command(gpus, capsys):
    assert images.choose(["openvla", "ui"]) == ["openvla", "ui"] and images.choose(["openvla"], "cu130") == [
        "openvla-cu130"
    ]
    assert images.unusable("gr00t-cu130", None).endswith("run: ./lab build gr00t --variant cu130")
    building.build(["openvla"], building.BuildOptions(dry_run=True), "cu130")
    told = capsys.readouterr().out
    assert f"openvla-cu130.args.LOCK_HASH={venvs.get('openvla-cu130').lock_hash}" in told
    assert "openvla-cu130.tags=vla-lab/openvla-cu130:dev" in told and told.rstrip().endswith(" openvla-cu130")
    gpus("12.0")
    assert {"openvla-cu130", "gr00t-cu130", "libero"} <= set(images.choose([]))


# --- the doctor ---------------------------------------------------------------------------------------------


def finding(machine: Recorded, *environments: str):
    (result,) = runner.run(runner.checks_by_id(["nvidia-version"]), Context(machine, environments=environments))
    return result.finding


def with_driver(version: str) -> Recorded:
    machine = recorded("blackwell")
    return replace(machine, nvml={**machine.nvml, "driver": version})


def test_a_new_gpu_is_told_its_command_or_the_driver_it_needs():
    assert finding(with_driver("580.95.05"), "openvla-cu130").verdict == PASS
    old = finding(with_driver("570.86.15"), "openvla-cu130")
    assert old.verdict == FAIL and "570.86.15 is too old" in old.reason and "580.65" in old.reason
    upstream = finding(with_driver("580.95.05"), "openvla")
    assert upstream.verdict == FAIL and upstream.fix == "./lab up openvla --variant cu130"


def test_without_a_name_the_doctor_looks_at_what_this_machine_would_use():
    found = finding(with_driver("580.95.05"))
    assert found.verdict == WARN and "ws_mdl" in found.reason and "openvla" not in found.reason
    old = finding(with_driver("570.86.15"))
    assert old.verdict == FAIL and "openvla-cu130 (13.0: 580.65.6)" in old.reason
