"""A model's service that nobody named a checkpoint for: the only one there is, or words on how to get or choose one."""

import pytest

from vlalab.commands import lifecycle
from vlalab.description import checkpoints
from vlalab.host.console import LabError

VARIABLE = "VLALAB_OPENVLA_CHECKPOINT"


@pytest.fixture(autouse=True)
def volume(tmp_path, monkeypatch):
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path


def write(volume, name, model="openvla", weights=True):
    directory = volume / "checkpoints" / name
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(f'{{"model_type": "{model}"}}')
    if weights:
        (directory / "model.safetensors").touch()


def test_only_checkpoint_is_the_default_and_reported(volume, capsys):
    write(volume, "openvla-tiny")
    write(volume, "gr00t-tiny", "gr00t_n1_5")
    write(volume, "half", weights=False)
    found = checkpoints.complete(["openvla"], ["openvla"], {"openvla": {"VLALAB_OPENVLA_QUANT": "nf4"}})
    assert found == {"openvla": {"VLALAB_OPENVLA_QUANT": "nf4", VARIABLE: "openvla-tiny"}}
    assert "openvla serves checkpoint openvla-tiny" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("names", [[], ["first", "second"]])
def test_requested_model_without_a_checkpoint_is_rejected(names, volume):
    for name in names:
        write(volume, name)
    assert checkpoints.complete(["openvla"], ["openvla"], {"openvla": {}}) == {"openvla": {}}
    with pytest.raises(LabError, match="openvla cannot start: missing a checkpoint"):
        lifecycle.require_startable(["openvla"], {})


@pytest.mark.parametrize(
    ("names", "said"), [([], "./lab checkpoint openvla --tiny"), (["first", "second"], "--checkpoint first")]
)
def test_what_merely_needs_a_policy_comes_up_without_it(names, said, volume, capsys):
    for name in names:
        write(volume, name)
    assert checkpoints.complete(["openvla", "ui"], ["ui"], {"openvla": {}, "ui": {}}) == {"ui": {}}
    told = " ".join(capsys.readouterr().err.split())
    assert said in told and "ui starts without openvla" in told
    both = {"openvla": {}, "ui": {}}
    assert checkpoints.complete(["openvla", "ui"], ["ui"], both, running=["openvla"]) == both


def test_missing_required_variable_is_reported(volume):
    with pytest.raises(LabError, match="bridge cannot start.*VLALAB_BRIDGE_SERVER=ws://host:8000 ./lab up bridge"):
        lifecycle.require_startable(["bridge"], {})
    assert lifecycle.require_startable(["bridge"], {"bridge": {"VLALAB_BRIDGE_SERVER": "ws://gpu01:8000"}}) is None
