"""`up A B` and `restart` start side by side what does not need each other: real processes that wait for each other."""

import sys
from pathlib import Path

import pytest

from tests.ports import free_ports
from vlalab.commands import lifecycle
from vlalab.description import compose
from vlalab.environments import venvs
from vlalab.host.console import LabError
from vlalab.runtimes import interface, local

SERVICE = Path(__file__).with_name("small_service.py")
ONE = """
  {name}:
    x-local: tiny
    restart: "no"
    stop_grace_period: 1s
    command:
      [python, "{script}", --host, "${{VLALAB_LISTEN:-0.0.0.0}}", --port, "${{VLALAB_{upper}_PORT:-{port}}}"{flags}]
    ports: ["${{VLALAB_BIND:-127.0.0.1}}:${{VLALAB_{upper}_PORT:-{port}}}:${{VLALAB_{upper}_PORT:-{port}}}"]
    healthcheck:
      test: [CMD, python, -m, vla_common.healthcheck, "http://127.0.0.1:${{VLALAB_{upper}_PORT:-{port}}}/readyz"]
"""


@pytest.fixture
def describe(tmp_path, monkeypatch):
    """Returns a function that makes a compose file of small services with these flags."""
    directory = tmp_path / "images" / "tiny"
    (directory / ".venv" / "bin").mkdir(parents=True)
    (directory / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (directory / "requirements.lock").write_text("# nothing\n")
    monkeypatch.setattr(venvs, "ensure", lambda name: venvs.LocalEnvironment(name, directory))
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    monkeypatch.delenv("VLALAB_BIND", raising=False)
    monkeypatch.setattr(compose, "FILE", tmp_path / "compose.yaml")
    for function in (compose.read, compose.needs):
        keep = function.__defaults__
        monkeypatch.setattr(function, "__defaults__", tuple(compose.FILE if one in keep[:1] else one for one in keep))

    def write(**flags: str) -> None:
        words = {name: "".join(f', "{flag}"' for flag in one.split()) for name, one in flags.items()}
        entries = [
            ONE.format(name=name, upper=name.upper(), script=SERVICE, port=port, flags=words[name])
            for port, name in zip(free_ports(len(flags)), flags, strict=True)
        ]
        compose.FILE.write_text("services:" + "".join(entries))

    yield write
    for found in local.instances():
        found.stop()


def test_neither_waits_for_the_other_to_be_ready(describe, tmp_path):
    """The first is ready once the second runs: one after the other they never would be."""
    describe(a=f"--ready-when {tmp_path}/b", b=f"--touch {tmp_path}/b")
    assert [found.name for found in lifecycle.up(["a", "b"], "local")] == ["a", "b"]
    assert len({found.url for found in local.instances()}) == 2
    (tmp_path / "b").unlink()
    assert sorted(found.name for found in lifecycle.restart([])) == ["a", "b"]


def test_failed_service_is_reported_and_the_other_keeps_running(describe):
    describe(a="--crash", b="--ready-after 1")
    with pytest.raises(LabError, match="cannot load the weights"):
        lifecycle.up(["a", "b"], "local")
    assert [found.name for found in local.instances()] == ["b"] and local.instance("b").is_healthy()


def test_an_interrupt_stops_what_is_not_ready_yet(describe, monkeypatch):
    describe(a="--ready-after 600", b="--ready-after 600")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(interface, "wait_ready", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lifecycle.up(["a", "b"], "local")
    assert local.instances() == []


def test_two_that_have_to_move_get_different_ports(describe):
    describe(a="--ready-after 1", b="--ready-after 1", c="")
    (port,) = free_ports(1)
    moved = {"VLALAB_A_PORT": str(port), "VLALAB_B_PORT": str(port)}
    found = [local.start(name, {variable: moved[variable]}) for name, variable in zip("ab", moved, strict=True)]
    assert found[0].url != found[1].url


def test_what_is_needed_comes_first():
    assert lifecycle.batches(["openvla", "gr00t", "ui", "oracle"]) == [["openvla", "gr00t", "oracle"], ["ui"]]
