"""Programs whose token or key has a character that no header can carry: they say which, and never show it."""

import os
import subprocess
import sys

import pytest

from tests.libero.harness import ENVIRONMENT, ROOT
from vla_evaluation.store.remote import Joined, RemoteStore

URL = "http://127.0.0.1:9"
PROGRAMS = {
    "service": ("services.libero.policies", "random", "--port", "0"),
    "simulator": ("services.libero.live", "--port", "0"),
    "notebooks": ("vla_notebooks", "--of", "libero", "--port", "0", *(["--allow-root"] if os.geteuid() == 0 else [])),
    "openpi": ("services.bridge", "openpi", "--port", "0", "--policy-url", URL),
    "bridge": ("services.bridge", "policy", "--port", "0", "--server", "ws://127.0.0.1:9"),
    "evaluator": ("services.libero", "libero_goal", "--policy-url", URL),
    "evaluator that listens": ("services.libero", "libero_goal", "--policy-url", URL, "--listen", "127.0.0.1:0"),
    "machine that joins": ("services.libero", "join", URL),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_names_the_character_and_shows_nothing_of_the_token(name, tmp_path):
    variable = "VLALAB_BRIDGE_KEY" if name == "bridge" else "VLALAB_TOKEN"
    variables = {**ENVIRONMENT, "VLALAB_VOLUME": str(tmp_path), variable: "secret-one\u200bsecret-two"}
    command = [sys.executable, "-m", *PROGRAMS[name]]
    done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=300)
    output = done.stdout + done.stderr
    assert done.returncode in (1, 2) and "U+200B (ZERO WIDTH SPACE)" in output and "character 11 of 21" in output
    assert variable in output and "secret-" not in output and "Traceback" not in output


def test_a_worker_of_a_joined_run_shows_nothing_of_the_token(tmp_path):
    joined = Joined(URL, 1, "two", "key", 1.0, {})
    with pytest.raises(ValueError, match="VLALAB_TOKEN") as caught:
        RemoteStore(tmp_path, joined, "secret-one\u200bsecret-two")
    assert "U+200B" in str(caught.value) and "secret-" not in str(caught.value)
