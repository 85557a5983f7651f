"""What a stranger relies on: one version, the workflow of a fork, the hooks of a commit, licences of what is used."""

import re
import subprocess
import sys

import pytest
import yaml

from vlalab.description import declared
from vlalab.host import paths
from vlalab.testing import plan

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


# --- what GitHub reads --------------------------------------------------------------------------------------

SCHEMAS = {
    "vendor.github-workflows": ".github/workflows/*.yml",
    "custom.github-workflows-require-timeout": ".github/workflows/*.yml",
    "vendor.github-issue-forms": ".github/ISSUE_TEMPLATE/*.yml",
    "vendor.citation-file-format": "CITATION.cff",
}
WORKFLOW = yaml.load((ROOT / ".github/workflows/ci.yml").read_text(), yaml.BaseLoader)  # else `on` would be true
JOBS = WORKFLOW["jobs"]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_githubs_files_fit_their_schemas(schema):
    files = sorted(map(str, ROOT.glob(SCHEMAS[schema])))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert files and done.returncode == 0, done.stdout


def test_a_fork_tests_every_change_and_all_of_it_every_night():
    assert set(WORKFLOW["on"]) == {"push", "pull_request", "schedule", "workflow_dispatch"}
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert JOBS["change"]["strategy"]["matrix"]["python"] == ["3.10", "3.13"]
    words = [step["run"].split() for step in JOBS["change"]["steps"] if "run" in step]
    assert words == [["./lab", "test", "lint", "host", "contract"]] and {"lint", "host", "contract"} <= set(plan.PARTS)
    assert JOBS["nightly"]["steps"][-1]["run"].endswith(".ci/run --nightly")
    assert './lab test "$@"' in (ROOT / ".ci/run").read_text()


def test_the_workflows_actions_are_pinned_and_it_names_no_package_index():
    used = [step["uses"] for job in JOBS.values() for step in job["steps"] if "uses" in step]
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|[0-9a-f]{40})", action) for action in used)
    assert not re.search(r"(?i)index|pypi|https?://", (ROOT / ".github/workflows/ci.yml").read_text())


# --- the hooks of a commit ----------------------------------------------------------------------------------


def test_a_commit_is_checked_by_what_lint_runs_in_the_locks_version():
    """A hook from elsewhere would pin a second version of ruff, which nothing keeps like the lock's."""
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    (hook,) = repository["hooks"]
    assert repository["repo"] == "local" and hook["language"] == "system" and hook["pass_filenames"] is False
    assert hook["entry"] == "./lab test lint" and "lint" in plan.PARTS
    pinned = re.search(r"(?m)^ruff==(\S+)", (ROOT / "requirements.lock").read_text())[1]
    used = subprocess.run([sys.executable, "-m", "ruff", "--version"], capture_output=True, text=True).stdout
    assert used.split() == ["ruff", pinned]
