"""docs/own-policy.md, from an environment of its own to a comparison, as a researcher types it."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.ports import free_ports
from vlalab.environments import venvs
from vlalab.host import paths

PAGE = (paths.ROOT / "docs" / "own-policy.md").read_text(encoding="utf-8")


def test_a_policy_in_an_environment_of_its_own_is_evaluated_and_compared(terminal, tmp_path):
    (port,) = free_ports(1)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(program.strip().splitlines()) <= 20 and "serve(MyPolicy, port=8001)" in program
    (tmp_path / "my_policy.py").write_text(program.replace("8001", str(port)))
    python = tmp_path / "my-env" / "bin" / "python"
    assert 'pip install "./shared/contract[server]"' in PAGE
    venvs.uv(["venv", "--no-project", "--python", sys.executable, str(tmp_path / "my-env")])
    venvs.uv(["pip", "install", "--python", str(python), f"{paths.ROOT}/shared/contract[server]"])
    commands = [line.removeprefix("./lab ").split() for line in re.findall(r"(?m)^\./lab .*", PAGE)]
    short = ["--trials", "1", "--tasks", "0", "--max-steps", "30"]
    policy = subprocess.Popen([python, "-I", tmp_path / "my_policy.py"], cwd=tmp_path)
    try:
        for words in commands:
            words = [word.replace("8001", str(port)) for word in words]
            if words[0] == "eval":
                words += short
            if words[0] != "report":  # the pages have tests of their own
                said = terminal.done(*words).text
    finally:
        policy.terminate()
        policy.wait(30)
    assert [words[0] for words in commands] == ["eval", "report", "eval", "compare"]
    assert "libero_goal-mine-1" in said and "libero_goal-oracle-1" in said
