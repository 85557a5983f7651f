"""Manifests: what is in one is what the tool knows, and a bad one says where it is wrong and what was expected."""

from pathlib import Path

import pytest

from vlalab.description import manifests
from vlalab.host import paths
from vlalab.host.console import LabError

GOOD = "about: tests\nvenv_gb: 2\nimage_gb: 3.5\n"


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> Path:
        directory = tmp_path / "toy"
        directory.mkdir(exist_ok=True)
        (directory / manifests.NAME).write_text(text)
        return tmp_path

    return write


def test_a_short_manifest_has_the_defaults(written):
    found = manifests.environment("toy", written(GOOD))
    assert (found.about, found.venv_gb, found.image_gb, found.needs_gl) == ("tests", 2.0, 3.5, False)
    assert type(found.venv_gb) is float and found.stages == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD + "need_gl: true\n", r"key 'need_gl' not found; did you mean 'needs_gl'\?"),
        ("about: tests\nimage_gb: 1\n", r"toy/manifest.yaml has no 'venv_gb'; expected a number"),
        (GOOD + "needs_gl: 1\n", r"manifest.yaml: needs_gl is 1; expected true or false"),
        (GOOD + "shared_gb: {cuda: much}\n", r"shared_gb: cuda is 'much'; expected a number"),
        (GOOD + "stages: [wheel]\n", r"stages is \['wheel'\]; expected a mapping"),
        (
            GOOD + "stages: {wheel: {argument: A, helps: x}}\n",
            r"stages: wheel: key 'helps' not found; did you mean 'help'",
        ),
        ("", r"is None; expected a mapping"),
        ("about: [", r"toy/manifest.yaml is not valid YAML"),
    ],
)
def test_invalid_manifest_reports_location_and_expectation(written, text, says):
    with pytest.raises(LabError, match=says):
        manifests.environment("toy", written(text))


def test_one_environment_is_the_default():
    known = manifests.environments()
    assert [name for name, one in known.items() if one.default] == [manifests.default_environment()]
    assert set(known) == set(paths.image_names())
