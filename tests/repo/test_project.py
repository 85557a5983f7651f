"""What a stranger relies on: one version, the workflow of a fork, the hooks of a commit, licences of what is used."""

import re
import subprocess
import sys

import yaml

from vlalab.description import declared
from vlalab.host import paths

ROOT = paths.ROOT
VERSION = declared.version()


# --- the version --------------------------------------------------------------------------------------------


def test_one_version_which_the_changelog_knows():
    """The contract's package declares it. GitHub reads CITATION.cff, which can only repeat it."""
    printed = subprocess.run([sys.executable, "-I", "-m", "vlalab", "--version"], capture_output=True, text=True).stdout
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION) and printed.split() == ["lab", VERSION]
    assert re.findall(r"(?m)^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text())[0] == VERSION
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == VERSION


def test_no_package_states_a_version_of_its_own():
    for path in [ROOT / "pyproject.toml", *ROOT.glob("shared/*/pyproject.toml")]:
        text = path.read_text()
        assert not re.search(r"(?m)^version *= *\"", text) and re.search(r'(?m)^dynamic = \[.*"version"', text), path
