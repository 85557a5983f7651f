"""What `up` is told about a service: checkpoints that exist, devices that make sense, and what is kept of it."""

import os

import pytest

from vlalab.description import compose, manifests, service_settings
from vlalab.engine import volumes
from vlalab.host import state
from vlalab.host.console import LabError

UUID = "GPU-5d5ba0d6-1d33-d6b9-7cd1-a5bd2f0f6a1c"


@pytest.fixture
def volume(tmp_path, monkeypatch):
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("service", [name for name, model in manifests.models().items() if model.checkpoints])
@pytest.mark.parametrize("suite", ["libero_spatial", "libero_object", "libero_goal", "libero_10"])
def test_a_suite_means_its_published_checkpoint(volume, service, suite):
    with pytest.raises(LabError, match=rf"existing: none. Get one: ./lab checkpoint {service} --suite {suite}"):
        service_settings.from_flags(service, suite=suite)
    directory = volume / "checkpoints" / manifests.models()[service].checkpoints[suite]
    directory.mkdir(parents=True)
    given = service_settings.from_flags(service, suite=suite)
    assert given[service_settings.variable(service, "CHECKPOINT")] == directory.name
    assert given.get("VLALAB_OPENVLA_UNNORM_KEY", suite) == suite


def test_the_base_model_is_of_no_suite_and_models_have_flags_of_their_own(volume):
    for name in ("openvla-7b", "mine"):
        (volume / "checkpoints" / name).mkdir(parents=True)
    own = {"quant": "fp4", "unnorm_key": "bridge_orig"}
    given = service_settings.for_services(["openvla", "oracle"], "base", None, None, own)
    assert given["openvla"] == {
        "VLALAB_OPENVLA_CHECKPOINT": "openvla-7b", "VLALAB_OPENVLA_QUANT": "fp4",
        "VLALAB_OPENVLA_UNNORM_KEY": "bridge_orig",
    }  # fmt: skip
    assert service_settings.from_flags("openvla", "base")["VLALAB_OPENVLA_UNNORM_KEY"] is None
    with pytest.raises(LabError, match="--quant applies to openvla, not to gr00t, oracle"):
        service_settings.for_services(["gr00t", "oracle"], None, "mine", None, {"quant": "fp4"})


def test_a_checkpoint_is_a_name_or_a_path(volume, tmp_path):
    directory = tmp_path / "checkpoints" / "mine"
    directory.mkdir(parents=True)
    assert service_settings.from_flags("openvla", checkpoint="mine")["VLALAB_OPENVLA_CHECKPOINT"] == "mine"
    assert service_settings.from_flags("openvla", checkpoint=str(directory))["VLALAB_OPENVLA_CHECKPOINT"] == str(
        directory
    )
    with pytest.raises(LabError, match=r"'other' not found in .*existing: mine.*--tiny"):
        service_settings.from_flags("openvla", checkpoint="other")


@pytest.mark.parametrize("gpu", ["first", "0;1", "-1", "0,", "cuda:0", "0,all", "GPU-", "MIG"])
def test_devices_that_make_none(gpu):
    with pytest.raises(LabError, match="expected auto, none, all, or numbers"):
        service_settings.from_flags("gr00t", gpu=gpu)


def test_settings_are_stored_until_deleted(volume):
    assert service_settings.stored("oracle") == {}
    service_settings.save("oracle", {"VLALAB_ORACLE_PORT": "9"})
    assert service_settings.of_all(["random", "oracle"]) == {"VLALAB_ORACLE_PORT": "9"}
    service_settings.save("oracle", {})
    assert service_settings.stored("oracle") == {}
    service_settings.save("oracle", {"A": "1"})
    (state.directory() / "oracle.settings").write_text("damaged")
    assert service_settings.stored("oracle") == {}


def test_shell_settings_exclude_those_of_dotenv(monkeypatch, tmp_path):
    monkeypatch.setattr(compose, "read_dotenv", lambda path: {"VLALAB_UI_POLICY": "http://a:1", "VLALAB_UI_PORT": "1"})
    monkeypatch.setenv("VLALAB_UI_POLICY", "http://b:2")
    monkeypatch.setenv("VLALAB_UI_PORT", "1")
    assert service_settings.from_shell("ui") == {"VLALAB_UI_POLICY": "http://b:2"}


# --- whose files --------------------------------------------------------------------------------------------


@pytest.fixture
def caller(monkeypatch, volume):
    """Makes this process look like another user's."""
    for name in ("VLALAB_UID", "VLALAB_GID", "SUDO_UID", "SUDO_GID"):
        monkeypatch.delenv(name, raising=False)

    def be(uid: int, **variables: str) -> None:
        monkeypatch.setattr(volumes.os, "geteuid", lambda: uid)
        monkeypatch.setattr(volumes.os, "getegid", lambda: uid)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return be


def test_roots_files_belong_to_who_called_sudo(caller):
    caller(0, SUDO_UID="1001", SUDO_GID="1002")
    assert volumes.owner() == (1001, 1002)


def test_else_to_the_volumes_owner_or_the_first_user(caller, volume, monkeypatch):
    """One that is not there yet will be its folder's owner's: in a student's clone, the student's."""
    caller(0)
    mine = (volume.stat().st_uid, volume.stat().st_gid)
    assert volumes.owner() == (mine if mine[0] else volumes.DEFAULT_USER)
    monkeypatch.setenv("VLALAB_VOLUME", str(volume / "not yet"))
    assert volumes.owner() == (mine if mine[0] else volumes.DEFAULT_USER)


def test_valid_settings_apply_and_invalid_ones_are_reported(caller, monkeypatch):
    caller(0, VLALAB_UID="7", VLALAB_GID="8")
    assert volumes.owner() == (7, 8)
    monkeypatch.setenv("VLALAB_UID", "me")
    with pytest.raises(LabError, match="are 'me' and '8'; expected numbers"):
        volumes.owner()


def test_unmountable_volume_is_rejected(volume, monkeypatch):
    monkeypatch.setenv("VLALAB_VOLUME", str(volume / "a:b"))
    with pytest.raises(LabError, match="must not have a ':' in its path"):
        volumes.prepare()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_root_gives_away_what_it_made_and_nothing_else(tmp_path):
    (tmp_path / "target").write_text("")
    directory = tmp_path / "folder"
    directory.mkdir()
    os.chown(directory, 4321, 4322)
    (directory / "link").symlink_to(tmp_path / "target")
    (directory / "name").hardlink_to(tmp_path / "target")
    (directory / "made").write_text("")
    with pytest.raises(OSError):
        volumes.give_to_parent_owner(directory / "link")
    volumes.give_to_parent_owner(directory / "name")
    volumes.give_to_parent_owner(directory / "made")
    assert (tmp_path / "target").stat().st_uid == 0
    assert ((directory / "made").stat().st_uid, (directory / "made").stat().st_gid) == (4321, 4322)
