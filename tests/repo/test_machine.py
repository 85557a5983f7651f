"""What documents say of machines and runs against the code and, where environments are made here, against the disk."""

import re
import subprocess

import pytest

from vlalab.description import manifests
from vlalab.environments import venvs
from vlalab.host import paths

TEXT = (paths.ROOT / "docs" / "machine.md").read_text().partition("## Disk")[2].partition("\n## ")[0]
SLACK = 0.25  # of a size: a Python's minor version and a file system's blocks change it


def rows() -> dict[str, float]:
    """Returns the sizes of the table, in GB."""
    return {name: float(size) for name, size in re.findall(r"^\| `([\w.]+)` \| ([\d.]+) \|", TEXT, re.M)}


def test_the_table_has_every_environment_with_the_size_that_the_tool_expects():
    told = re.findall(r"(?m)^\| `(\w+)` \| ([\d.]+) \| (.*) \|$", TEXT)
    known = manifests.environments()
    assert {name: (float(size), about) for name, size, about in told} == {
        name: (one.venv_gb, one.about) for name, one in known.items()
    }


@pytest.mark.parametrize("name", [*paths.image_names(), *paths.variant_names()])
def test_an_environment_takes_what_the_table_says(name):
    env = venvs.get(name)
    if not env.is_ready():
        pytest.skip(f"environment '{name}' is not made here")
    done = subprocess.run(["du", "-s", "--block-size=1", str(env.venv)], capture_output=True, text=True)
    assert int(done.stdout.split()[0]) / 1e9 == pytest.approx(manifests.environment(name).venv_gb, rel=SLACK)


def test_the_memory_of_services_is_their_manifests():
    """A row may hold several: names, and as many numbers of MB or one for all of them."""
    table = re.findall(r"(?m)^\| (`.*`.*?) \| ([\d, ]+) \|", (paths.ROOT / "docs" / "machine.md").read_text())
    found = {}
    for names, sizes in table:
        services, numbers = re.findall(r"`(\w+)`", names), [int(size) for size in sizes.split(", ")]
        found |= dict(zip(services, numbers * (len(services) if len(numbers) == 1 else 1), strict=True))
    told = {name: service.memory_mb for name, service in manifests.services().items() if service.memory_mb}
    assert len(found) > 5 and found == {name: told[name] for name in found}


def test_example_runs_are_called_as_runs_are():
    """SUITE-POLICY-N, as the evaluator numbers them; SUITE-v0 is Gymnasium's."""
    files = [paths.ROOT / "README.md", *(paths.ROOT / "docs").glob("*.md"), *(paths.ROOT / "vlalab").glob("**/*.py")]
    suites = "|".join(manifests.suites())
    named = [name for path in files for name in re.findall(rf"\b(?:{suites})-(?!v\d)[a-z][\w.…-]*", path.read_text())]
    assert named and [name for name in named if not re.fullmatch(r"libero_\w+?-[a-z][a-z0-9]*-\d+", name)] == []
