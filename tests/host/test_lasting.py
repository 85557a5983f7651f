"""What took long here last time is told before it begins; nothing is told that is not known."""

import pytest

from vlalab.engine import building, docker, images
from vlalab.host import lasting, state
from vlalab.host.console import LabError


def known(name: str, text: str) -> None:
    """Notes how long something took before."""
    state.write(state.folder(lasting.FOLDER) / name, text)


def noted(name: str) -> str | None:
    return state.read(state.folder(lasting.FOLDER) / name)


@pytest.mark.parametrize(("seconds", "said"), [("2040", "took 34 min on"), ("7500", "took 2 h 05 min on")])
def test_what_was_long_is_told_before(seconds, said, capsys):
    known("test-host", seconds)
    with lasting.announced("test", "host"):
        assert f"./lab test host {said} this machine last time" in capsys.readouterr().err
    assert noted("test-host") == "0", "and what it takes now is what counts the next time"


@pytest.mark.parametrize("text", [None, "599", "damaged"])
def test_what_was_short_or_is_not_known_is_not_told(text, capsys):
    if text:
        known("build-ui", text)
    with lasting.announced("build", "ui"):
        pass
    assert capsys.readouterr().err == "" and noted("build-ui") == "0"


def test_what_fails_leaves_the_note_as_it_was():
    known("build-ui", "900")
    with pytest.raises(LabError), lasting.announced("build", "ui"):
        raise LabError("no network")
    assert noted("build-ui") == "900"


@pytest.mark.parametrize(("is_there", "name"), [(False, "build-ui"), (True, "build-ui-(again)")])
def test_a_build_tells_and_notes_and_the_first_is_another_than_the_next(is_there, name, monkeypatch, capsys):
    monkeypatch.setattr(docker, "require", lambda plugin: None)
    monkeypatch.setattr(building, "_run", lambda names, args, options: None)
    monkeypatch.setattr(building, "_built", lambda names: [])
    monkeypatch.setattr(images, "found", lambda names=None: {"ui": None} if is_there else {})
    known(name, "1200")
    building.build(["ui"], building.Options())
    assert "./lab build ui" in (said := capsys.readouterr().err) and "took 20 min" in said
    assert noted(name) == "0"
