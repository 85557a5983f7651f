"""`.env` as Compose reads it: a table of what Compose 2.26 makes of each line, and Compose itself where it is there."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from vlalab.description import compose
from vlalab.host.console import LabError

PROCESS = {"OUTER": "from outside", "TAKEN": "process"}
# line (or lines: the last one counts) → value
CASES = {
    "V=1": "1",
    "export V='two words'": "two words",
    "V=x # why": "x",
    "V=x#y": "x#y",
    "V=# nothing": "# nothing",
    'V="a b" # why': "a b",
    "V='a # b' # why": "a # b",
    "V = spaced  ": "spaced",
    "V=a=b=c": "a=b=c",
    "V=": "",
    'V=""': "",
    'V="x"   ': "x",
    "V=has two words": "has two words",
    'V=ab"c d"e': 'ab"c d"e',
    "V=it's": "it's",
    "V='it\\'s'": "it's",
    "V=café": "café",
    "V=C:\\dir": "C:\\dir",
    'V="one\ntwo"': "one\ntwo",
    'V="a\\tb\\n \\"q\\" \\\\"': 'a\tb\n "q" \\',
    "V=$OUTER/vla": "from outside/vla",
    "V=${OUTER}/vla": "from outside/vla",
    'V="$OUTER/vla"': "from outside/vla",
    "V='$OUTER/vla'": "$OUTER/vla",
    "V=${MISSING:-fallback}/x": "fallback/x",
    "V=${OUTER:+other}": "other",
    "V=$MISSING.": ".",
    "V=a$$b": "a$b",
    "V=pass$": "pass$",
    "V=a$1b": "a$1b",
    'V="a\\$OUTER"': "a$OUTER",
    "A=1\nV=${A}2": "12",
    "TAKEN=file\nV=$TAKEN": "process",
}


@pytest.fixture
def outside(monkeypatch):
    for name in ("V", "A", "MISSING"):
        monkeypatch.delenv(name, raising=False)
    for name, value in PROCESS.items():
        monkeypatch.setenv(name, value)


def ours(directory: Path, text: str) -> str:
    (directory / ".env").write_text(text + "\n")
    return compose.read_dotenv(directory / ".env")["V"]


def composes(directory: Path, texts: Iterable[str]) -> dict[str, str]:
    """Returns text → what the plugin makes of its V, asked once: the file has them all, each V with a number.

    `config` doubles the dollar signs of what it prints.
    """
    names = {text: f"V{number}" for number, text in enumerate(texts)}
    lines = [re.sub(r"\bV(?= ?=)", name, text) for text, name in names.items()]
    (directory / ".env").write_text("\n".join(lines) + "\n")
    passed = {name: f"${{{name}}}" for name in names.values()}
    (directory / "compose.yaml").write_text(json.dumps({"services": {"one": {"image": "x", "environment": passed}}}))
    command = ["docker", "compose", "--project-directory", str(directory), "config", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=directory, env={**os.environ, **PROCESS})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["services"]["one"]["environment"]
    return {text: found[name].replace("$$", "$") for text, name in names.items()}


@pytest.mark.parametrize(("text", "value"), CASES.items())
def test_a_line_means_what_it_means_to_compose(text, value, tmp_path, outside):
    assert ours(tmp_path, text) == value


def test_compose_agrees(tmp_path, outside):
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode
    ):
        pytest.skip("no docker command with Compose on this machine; tests/docker brings one")
    assert composes(tmp_path, CASES) == CASES


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('A=1\nV="open', "line 2.*closed quotes"),
        ("V=${open", "line 1.*without a valid name"),
        ("V=${MISSING:?set it}", "MISSING: set it"),
        ("V: yaml", "line 1.*expected NAME=value"),
    ],
)
def test_invalid_lines_are_reported_with_their_number(text, says, tmp_path, outside):
    with pytest.raises(LabError, match=rf"(?s)\.env, .*{says}|{says}"):
        ours(tmp_path, text)
