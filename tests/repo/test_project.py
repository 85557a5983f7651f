"""What a stranger relies on: one version, the workflow of a fork, the hooks of a commit, licences of what is used."""

import re
import subprocess
import sys
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
import yaml

from vlalab.environments import licences, venvs
from vlalab.host import paths, shared_code
from vlalab.testing import run

ROOT = paths.ROOT
VERSION = shared_code.version()


# --- the version --------------------------------------------------------------------------------------------


def test_one_version_which_the_changelog_knows():
    """The contract's package declares it. GitHub reads CITATION.cff, which can only repeat it."""
    printed = subprocess.run([sys.executable, "-I", "-m", "vlalab", "--version"], capture_output=True, text=True).stdout
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION) and printed.split() == ["lab", VERSION]
    assert re.findall(r"(?m)^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text())[0] == VERSION
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == VERSION


# --- what GitHub reads --------------------------------------------------------------------------------------

WORKFLOW = yaml.load((ROOT / ".github/workflows/ci.yml").read_text(), yaml.BaseLoader)  # else `on` would be true
JOBS = WORKFLOW["jobs"]


def test_a_fork_tests_every_change_and_all_of_it_every_night():
    assert set(WORKFLOW["on"]) == {"push", "pull_request", "schedule", "workflow_dispatch"}
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert JOBS["change"]["strategy"]["matrix"]["python"] == ["3.10", "3.13"]
    words = [step["run"].split() for step in JOBS["change"]["steps"] if "run" in step]
    assert words == [["./lab", "test", "lint", "host", "contract"]] and {"lint", "host", "contract"} <= set(run.NAMES)
    assert JOBS["nightly"]["steps"][-1]["run"].endswith(".ci/run --nightly")
    assert './lab test "$@"' in (ROOT / ".ci/run").read_text()


def test_the_workflows_actions_are_pinned_and_it_names_no_package_index():
    used = [step["uses"] for job in JOBS.values() for step in job["steps"] if "uses" in step]
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|[0-9a-f]{40})", action) for action in used)
    assert not re.search(r"(?i)index|pypi|https?://", (ROOT / ".github/workflows/ci.yml").read_text())


# --- the hooks of a commit ----------------------------------------------------------------------------------


# --- licences -----------------------------------------------------------------------------------------------

THIRD_PARTY = (ROOT / licences.FILE).read_text()
DOWNLOADS = {  # what a user downloads with terms of its own → the pages that say how
    "NSCL V1": "docs/gr00t.md",
    "Llama Community License": "docs/openvla.md",
    "CC BY 4.0": "docs/assets.md",
    "CC BY-NC-SA 4.0": "docs/huggingface.md",
}


def test_every_package_of_the_images_is_listed_with_its_licence():
    """By name, version and images of the locks; `./lab lock --licences` makes the table."""
    listed = licences.rows(THIRD_PARTY)
    assert {pin: images for pin, (_, images) in listed.items()} == {
        pin: ", ".join(images) for pin, images in licences.pins().items()
    }
    unstated = {name for (name, _), (licence, _) in listed.items() if licence.strip("? ") in ("", "not stated")}
    assert len(listed) > 250 and unstated == {"cuda-toolkit"}  # it has no files, and names packages that state theirs


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ("License-Expression: MIT\nLicense: The MIT License", "MIT"),
        ("License: BSD-3-Clause\nClassifier: License :: OSI Approved :: BSD License", "BSD-3-Clause"),
        (f"License: {'text ' * 99}\nClassifier: License :: OSI Approved :: BSD License", "BSD License"),
        ("License: UNKNOWN", "ISC License"),
    ],
)
def test_a_packages_licence_is_what_its_metadata_states(tmp_path, metadata, licence):
    (tmp_path / "METADATA").write_text(f"Name: x\nVersion: 1\n{metadata}\n")
    (tmp_path / "LICENSE").write_text("\nISC License\n\nPermission to use …\n")
    assert licences.package_licence(PathDistribution(tmp_path)) == licence


def test_the_table_follows_the_locks_and_keeps_what_stands_above_it(tmp_path, monkeypatch):
    lock = tmp_path / "images/arm/requirements.lock"
    site = tmp_path / "images/arm/.venv/lib/python3.11/site-packages/new_one-2.dist-info"
    site.mkdir(parents=True)
    (tmp_path / "images/arm/manifest.yaml").write_text("{about: an arm, venv_gb: 1, image_gb: 1}")
    (site / "METADATA").write_text("Name: new_one\nVersion: 2\nLicense-Expression: Apache-2.0\n")
    lock.write_text(
        "new-one==2 \\\n    --hash=sha256:0\nold==1 \\\n    --hash=sha256:0\nwin==1 ; sys_platform == 'win32'\n"
    )
    old = "| gone | 1 | MIT | arm |\n| old | 1 | ISC | leg |\n"
    (tmp_path / licences.FILE).write_text("# Words\n\n" + licences.START + licences.HEAD + old)
    assert licences.write(tmp_path) == 2
    text = (tmp_path / licences.FILE).read_text()
    assert text.startswith("# Words\n\n")
    assert licences.rows(text) == {("new-one", "2"): ("Apache-2.0", "arm"), ("old", "1"): ("ISC", "arm")}


@pytest.mark.nightly
@pytest.mark.parametrize("name", paths.image_names())
def test_what_the_table_says_is_what_an_environments_packages_state(name):
    """Makes the environment, which takes minutes where it is not made yet."""
    venvs.ensure(name, ROOT)
    listed = {pin: licence for pin, (licence, _) in licences.rows(THIRD_PARTY).items()}
    stated = {pin: licence for pin, licence in licences.installed(image=name).items() if pin in listed}
    assert len(stated) > 40 and stated == {pin: listed[pin] for pin in stated}


def test_every_stored_image_and_array_is_listed_with_its_source():
    table = THIRD_PARTY.split("## Files in this repository")[1].split("\n## ")[0]
    patterns = re.findall(r"`([\w./*-]+\.(?:jpg|png|npz|json))`", table)
    listed = {path for pattern in patterns for path in ROOT.glob(pattern)}
    assert all(any(ROOT.glob(pattern)) for pattern in patterns)
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    tracked = subprocess.run(command, capture_output=True, text=True).stdout.split("\0")
    stored = {
        ROOT / name for name in tracked if Path(name).suffix in (".jpg", ".png", ".npz", ".woff2", ".ttf", ".otf")
    }
    assert stored <= listed


@pytest.mark.parametrize("licence", DOWNLOADS)
def test_terms_of_models_and_data_are_named_where_a_user_downloads_them(licence):
    """The programs print them too: tests/gr00t/test_download.py."""
    assert licence in THIRD_PARTY.split("## Models and data")[1].split("\n## ")[0]
    assert licence in (ROOT / DOWNLOADS[licence]).read_text()
