"""That the sides of the benchmarks that run in the host tool's environment differ."""

import re
from types import SimpleNamespace

import pytest

from bench import fleet, images
from vlalab.host import paths


def test_fleet_asks_as_many_machines_as_a_side_has(monkeypatch):
    asked = []

    def run(action, machines, *_, **__):
        asked.append(len(machines))
        return 0

    monkeypatch.setattr(fleet.fleet, "run", run)
    machines = [SimpleNamespace(name=f"gpu{number}") for number in range(fleet.MACHINES)]
    fleet.ask(machines[:1])
    fleet.ask(machines)
    assert asked == [1, 10]


@pytest.mark.parametrize("flag", images.ANEW)
def test_images_builds_stages_again_that_the_dockerfile_has(flag):
    """A name that is none of its stages would let the second build come from the cache of the first one."""
    stage = flag.removeprefix("no-cache-filter=")
    assert re.search(rf"(?m)^FROM \S+ AS {stage}$", (paths.ROOT / "images" / "Dockerfile").read_text())


def test_images_takes_another_version_of_a_package_than_the_lock_has():
    name, version = images.BUMP
    pinned = re.findall(rf"(?m)^{name}==(\S+)", (paths.ROOT / "images" / "ws_mdl" / "requirements.lock").read_text())
    assert len(pinned) == 1 and pinned[0] != version
