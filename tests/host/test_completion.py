"""Completion in a shell: tasks, flags and values, as a person at a terminal gets them."""

import shlex
import subprocess
import sys

import pytest

from vlalab.cli import candidates
from vlalab.host.paths import ROOT


@pytest.mark.parametrize(
    ("line", "expected", "other"),
    [
        ("", "eval", "--policy"),
        ("ev", "eval", "--policy"),
        ("eval ", "libero_goal", "--policy"),
        ("eval libero_goal --", "--trials", "libero_goal"),
        ("eval libero_goal --video ", "failures", "libero_goal"),
        ("eval libero_goal --resume --", "--trials", "failures"),
        ("finetune gr00t --", "--no-tune-diffusion-model", "--log-every"),
        ("train transformer --size ", "course", "--size"),
        ("up openvla --quant ", "fp4", "openvla"),
        ("bundle --", "--no-host", "--host"),
    ],
)
def test_what_a_line_may_continue_with(line, expected, other):
    found = candidates([*shlex.split(line), *([""] if line.endswith(" ") else [])])
    assert expected in found and other not in found


def test_an_unknown_task_has_no_completion():
    assert candidates(["evla", ""]) == []


def test_bash_completes_a_flag():
    script = f"""
source <({shlex.quote(sys.executable)} -I -m vlalab --print-completion-script)
COMP_WORDS=(./lab eval libero_goal --vid) COMP_CWORD=3
_complete_lab
echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["--video"], done.stderr
