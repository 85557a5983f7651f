"""Which GPUs there are, by an nvidia-smi that says what a test wants, and which ones a service is given."""

import json
import os
import stat
from pathlib import Path

import pytest

from tests.host.recorded_machine import Recorded
from vlalab.commands import programs
from vlalab.description import compose, gpus, service_settings
from vlalab.doctor import runner
from vlalab.doctor.check import FAIL, Context
from vlalab.engine import docker
from vlalab.host.console import LabError
from vlalab.runtimes import containers, local

MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"
LOST = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
CARD = {"/sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de", "/sys/bus/pci/devices/0000:01:00.0/class": "0x030000"}
UUIDS = [f"GPU-0000000{n}-1111-2222-3333-444444444444" for n in range(3)]


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Returns a function that puts an nvidia-smi on PATH: it shows that many GPUs, or runs those lines of sh."""
    for name in list(os.environ):
        if name.startswith(("VLALAB_", "CUDA_", "COMPOSE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("VLALAB_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr(docker, "info", lambda: {"Runtimes": {"nvidia": {}}})
    gpus._devices.cache_clear()

    def put(says: int | str) -> None:
        gpus._devices.cache_clear()
        rows = "\\n".join(f"{n}, {UUIDS[n]}" for n in range(says)) if isinstance(says, int) else ""
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{says if isinstance(says, str) else f'''printf '{rows}' '''}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    yield put
    gpus._devices.cache_clear()


# --- what there is ------------------------------------------------------------------------------------------


def test_missing_failing_and_empty_nvidia_smi_differ(smi):
    assert (gpus.count(), gpus.problem()) == (0, None), "no nvidia-smi"
    smi("echo 'No devices were found'; exit 6")
    assert (gpus.count(), gpus.problem()) == (0, None)
    smi(f"echo '{MISMATCH}'; exit 18")
    assert (gpus.count(), gpus.problem()) == (0, MISMATCH)
    smi("exit 1")
    assert gpus.problem() == "nvidia-smi exited with status 1"
    smi(2)
    assert (gpus.count(), gpus.problem()) == (2, None)


@pytest.mark.parametrize("service", compose.gpu_services())
def test_a_broken_driver_is_not_a_silent_run_on_the_cpu(smi, service):
    smi(f'echo "{LOST}" >&2; exit 9')
    for ask in (gpus.visible, containers.gpu_files):
        with pytest.raises(LabError, match=rf"has not loaded it; .*, or .*--gpu none \({gpus.variable(service)}=none"):
            ask(service, {})
        ask(service, {gpus.variable(service): "none"})
        ask("oracle", {})


@pytest.mark.parametrize(("error", "words"), [("LibRmVersionMismatch", MISMATCH), ("DriverNotLoaded", LOST)])
def test_nvidia_smi_and_the_doctor_say_the_same_of_a_driver(error, words):
    machine = Recorded(files={"/proc/driver/nvidia/version": "", "/proc/modules": "", **CARD}, nvml={"error": error})
    (found,) = runner.run(runner.checks_by_id(["nvidia-driver"]), Context(machine))
    assert found.finding.verdict == FAIL and found.finding.fix
    assert gpus.explain_driver_failure(words) == found.finding.text


def test_programs_that_need_no_gpu_run_with_a_broken_driver(smi, monkeypatch):
    smi(f"echo '{MISMATCH}'; exit 18")
    told = {}
    monkeypatch.setattr(local, "run", lambda service, command, variables, **_: told.update(variables) or 0)
    monkeypatch.setattr(local, "prepare", lambda names: None)
    assert programs.run_module("libero", "vla_evaluation.runs", ["list"], "local") == 0
    assert gpus.visible("libero", told) == ("none", {"CUDA_VISIBLE_DEVICES": ""})


# --- what a service is given --------------------------------------------------------------------------------


def request(path: Path, service: str) -> dict:
    """Returns what a Compose file asks the engine for."""
    return compose.device_request(service, path)


@pytest.mark.parametrize(
    ("choice", "devices"),
    [("0,1", ["0", "1"]), (f"{UUIDS[1]},{UUIDS[0]}", [UUIDS[1], UUIDS[0]]), ("0, 1", ["0", "1"])],
)
def test_several_devices_are_a_list(smi, choice, devices):
    (path,) = containers.gpu_files("openvla", {"VLALAB_OPENVLA_GPU": choice})
    assert request(path, "openvla") == {**compose.device_request("openvla"), "device_ids": devices}
    assert [path] == containers.gpu_files("openvla", {"VLALAB_OPENVLA_GPU": choice}), "made once"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert json.loads(path.read_text())["services"].keys() == {"openvla"}


def test_dotenv_selects_gpus(smi):
    smi(2)
    assert containers.gpu_files("openvla", {}) == [compose.GPU_FILE]
    assert containers.gpu_files("openvla", {"VLALAB_OPENVLA_GPU": "none"}) == []
    with pytest.raises(LabError, match="invalid VLALAB_OPENVLA_GPU first"):
        containers.gpu_files("openvla", {"VLALAB_OPENVLA_GPU": "first"})


def test_a_uuid_becomes_its_number_for_a_process(smi):
    smi(2)
    assert gpus.visible("libero", {"VLALAB_LIBERO_GPU": UUIDS[1]})[1]["CUDA_VISIBLE_DEVICES"] == "1"
    assert gpus.visible("libero", {"VLALAB_LIBERO_GPU": UUIDS[2]})[1]["CUDA_VISIBLE_DEVICES"] == UUIDS[2]


def test_as_many_gpus_as_processes(smi, monkeypatch):
    """A container sees what it was given only, and without a word that is the first."""
    assert programs.several_gpus("ws_mdl", 2, None) is None, "on the CPU two processes share it"
    smi(3)
    assert programs.several_gpus("ws_mdl", 2, None) == "0,1"
    assert programs.several_gpus("ws_mdl", 1, None) is None
    assert programs.several_gpus("ws_mdl", 2, "1,2") == "1,2"
    with pytest.raises(LabError, match="--gpus 2 requires 2 devices in --gpu, got 1"):
        programs.several_gpus("ws_mdl", 2, "1")
    monkeypatch.setenv("VLALAB_WS_MDL_GPU", "0,2")
    assert programs.several_gpus("ws_mdl", 2, None) is None
    variables = service_settings.merged({}, service_settings.from_flags("ws_mdl", gpu="0,1"))
    assert len(request(containers.gpu_files("ws_mdl", variables)[0], "ws_mdl")["device_ids"]) == 2
