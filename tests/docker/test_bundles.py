"""A bundle carries an image to a machine that has none: here, to an engine that it was removed from."""

import json
import os

import pytest

from tests.docker.conftest import USER
from vlalab.engine import docker, images

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def bundle(lab, builds, beside):
    """A bundle of the image ui, which is not in use then, and a checkpoint; the file is removed afterwards."""
    builds.get("ui")
    beside.wait("ui")
    directory = lab.volume / "checkpoints" / "of-the-tests"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "weights.bin").write_bytes(bytes(range(256)) * 64)
    for path in (directory.parent, directory, directory / "weights.bin"):
        os.chown(path, *USER)
    file = lab.volume.parent / "lab.bundle"
    lab("bundle", "ui", str(file), "--checkpoints", "of-the-tests", "--no-host")
    yield file
    file.unlink()


def test_what_was_removed_is_restored_as_it_was(bundle, lab):
    before = lab.image("ui")
    weights = lab.volume / "checkpoints" / "of-the-tests" / "weights.bin"
    weights.unlink()
    docker.run(["image", "rm", "--force", images.reference("ui", lab.name)])
    lab("restore", str(bundle))
    after = lab.image("ui")
    assert (after["Id"], after["RootFS"], after["Config"]["Labels"]) == (
        before["Id"], before["RootFS"], before["Config"]["Labels"],
    )  # fmt: skip
    assert weights.read_bytes() == bytes(range(256)) * 64
    assert (weights.stat().st_uid, weights.stat().st_gid) == USER
    found = lab.run_in("ui", "python", "images/common/selftest.py", "ui", "--json", "--part", "services")
    assert found.code == 0 and json.loads(found.stdout)["env"] == "ui", found.text


def test_a_damaged_bundle_is_refused_and_changes_nothing(bundle, lab):
    damaged = bundle.with_name("damaged.bundle")
    with bundle.open("rb") as source, damaged.open("wb") as target:
        while block := source.read(1 << 24):
            target.write(block)
        target.seek(bundle.stat().st_size // 2)
        target.write(b"\0" * 64)
    before = docker.run(["image", "ls", "--all", "--quiet", "--no-trunc"]).stdout
    try:
        refused = lab("restore", str(damaged), "--force", check=False)
        assert refused.code != 0 and "damaged.bundle" in refused.text
        assert docker.run(["image", "ls", "--all", "--quiet", "--no-trunc"]).stdout == before
    finally:
        damaged.unlink()
