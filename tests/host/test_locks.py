"""`invoke lock --check`: a lock fits its inputs, holds a hash per pin and was not edited by hand."""

import shutil
from pathlib import Path

import pytest

from vla_common import versions
from vlalab.environments import locks
from vlalab.host.console import LabError

ROOT = Path(__file__).resolve().parents[2]
INPUTS = ("requirements.in", "requirements.lock", "excludes.txt", "overrides.txt")


@pytest.fixture
def copies(tmp_path) -> dict[str, locks.Lock]:
    """Every lock of the repository with its inputs, as copies to spoil."""
    wanted = [ROOT / "shared/contract/pyproject.toml", *ROOT.glob("shared/*/requirements.in"), ROOT / "hub/student.in"]
    wanted += ROOT.glob("images/*/manifest.yaml")
    wanted += [ROOT / lock.directory / name for lock in locks.all_locks().values() for name in INPUTS]
    for source in filter(Path.exists, wanted):
        target = tmp_path / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    return locks.all_locks(tmp_path)


def every(copies):
    assert {"host", "libero"} <= set(copies)
    return copies.values()


def test_untouched_locks_are_in_order(copies):
    assert [problem for lock in every(copies) for problem in locks.problems(lock)] == []


def test_a_new_requirement_without_a_new_lock_is_found(copies):
    for lock in every(copies):
        lock.source.write_text(lock.source.read_text() + "\nsix==1.17.0\n")
        assert any(f"invoke lock {lock.name}" in problem for problem in locks.problems(lock))


def test_a_lock_edited_by_hand_is_found(copies):
    for lock in every(copies):
        text = lock.target.read_text()
        first = next(line for line in text.splitlines() if "==" in line and not line.startswith("#"))
        lock.target.write_text(text.replace(first, first.replace("==", "==9."), 1))
        assert any("by hand" in problem for problem in locks.problems(lock))


def test_a_pin_without_a_hash_is_found(copies):
    lock = copies["host"]
    lock.target.write_text(lock.target.read_text() + "six==1.17.0\n")
    assert any("no hash for six==1.17.0" in problem for problem in locks.problems(lock))


def test_a_change_of_the_contract_reaches_the_environments(copies):
    lock = copies["libero"]
    project = lock.root / locks.CONTRACT
    project.write_text(project.read_text().replace('"numpy>=1.24"', '"numpy>=1.25"'))
    assert any("does not match" in problem for problem in locks.problems(lock))


def test_a_variant_follows_its_environment_and_its_own_overrides(copies):
    """Its lock has the environment's pins but for those that the overrides replace, and what these bring."""
    variant, base = copies["openvla-cu130"], copies["openvla"]
    pinned, upstream = versions.read_pins(variant.target), versions.read_pins(base.target)
    overridden = versions.read_pins(variant.overrides)
    assert set(overridden) == {"torch", "torchvision", "bitsandbytes"}
    assert {name: pinned[name] for name in overridden} == overridden
    stays = {name for name in upstream if not name.startswith(("nvidia-", "triton")) and name not in overridden}
    assert {name: pinned[name] for name in stays} == {name: upstream[name] for name in stays}
    variant.overrides.write_text(variant.overrides.read_text().replace("torch==2.11.0", "torch==2.10.0"))
    assert any("does not match" in problem for problem in locks.problems(variant)) and locks.problems(base) == []


@pytest.mark.nightly
def test_a_package_that_one_processor_lacks_needs_a_marker(tmp_path):
    """Asks the package index."""
    lock = locks.Lock("toy", ".", root=tmp_path)
    lock.source.write_text("decord==0.6.0\n")
    with pytest.raises(LabError, match="does not serve aarch64(.|\n)*decord"):
        locks.make(lock)
    assert not lock.target.exists()
    lock.source.write_text("decord==0.6.0; platform_machine == 'x86_64'\n")
    assert locks.make(lock) and locks.problems(lock) == []


def test_a_lock_is_made_for_the_oldest_python_of_its_environment():
    versions = {lock.name: lock.command(Path("out")) for lock in locks.all_locks().values()}
    versions = {name: words[words.index("--python-version") + 1] for name, words in versions.items()}
    assert versions.pop("lerobot") == "3.12" and set(versions.values()) == {"3.10"}
