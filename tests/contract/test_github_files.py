"""The files that GitHub reads fit its schemas. Only this environment has check-jsonschema."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = {
    "vendor.github-workflows": ".github/workflows/*.yml",
    "custom.github-workflows-require-timeout": ".github/workflows/*.yml",
    "vendor.github-issue-forms": ".github/ISSUE_TEMPLATE/*.yml",
    "vendor.citation-file-format": "CITATION.cff",
}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_githubs_files_fit_their_schemas(schema):
    files = sorted(map(str, ROOT.glob(SCHEMAS[schema])))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert files and done.returncode == 0, done.stdout
