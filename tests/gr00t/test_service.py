"""The program: its settings, and that it refuses before it opens a port where something is missing."""

import os
import subprocess
import sys

import pytest

from services.gr00t.service.settings import EXTERNAL_VARIABLES, Settings
from tests.gr00t.conftest import ROOT, SHARED
from vla_modelkit.service import from_environment


def read(variables):
    return from_environment(Settings, "VLALAB_GR00T_", variables, EXTERNAL_VARIABLES)


WITHOUT_UPSTREAM = """
import runpy, sys

real = list(sys.meta_path)

class WithoutUpstream:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("gr00t", "torch"):  # the latter takes seconds: it is not for who is refused
            return None
        return next((spec for finder in real if (spec := finder.find_spec(name, path, target))), None)

sys.meta_path[:] = [WithoutUpstream()]
sys.argv = ["gr00t", "--port", "0", *{arguments}]
runpy.run_module("services.gr00t", run_name="__main__")
"""


def start(*arguments, **variables):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("VLALAB_GR00T_")}
    here = ":".join((str(ROOT), *SHARED, os.environ.get("PYTHONPATH", "")))
    environment |= {"PYTHONPATH": here, **variables}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def test_without_a_checkpoint_it_says_how_to_get_one_whatever_else_exists(tmp_path):
    done = start("-c", WITHOUT_UPSTREAM.replace("{arguments}", "[]"), VLALAB_VOLUME=str(tmp_path))
    assert done.returncode == 1
    assert "no checkpoint selected" in done.stderr and "./lab checkpoint gr00t" in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_come_from_variables_and_an_empty_one_is_unset():
    settings = read(
        {
            "VLALAB_GR00T_CHECKPOINT": "mine",
            "VLALAB_GR00T_DEVICE": "",
            "VLALAB_GR00T_SEED": "7",
            "VLALAB_GR00T_PORT": "1",
        }
    )
    assert settings == Settings(checkpoint="mine", seed=7)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"VLALAB_GR00T_CHECKPIONT": "x"}, "did you mean 'VLALAB_GR00T_CHECKPOINT'"),
        ({"VLALAB_GR00T_ATTENTION": "flashy"}, "did you mean 'flash'"),
        ({"VLALAB_GR00T_MAX_BATCH": "many"}, "expected an integer"),
        ({"VLALAB_GR00T_MAX_BATCH": "0"}, r"in \[1, 64\]"),
        ({"VLALAB_GR00T_DENOISING_STEPS": "-1"}, r"in \[1, 1000\]"),
        ({"VLALAB_GR00T_PROMPT": "plane"}, "did you mean 'plain'"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(variables, words):
    with pytest.raises(ValueError, match=words) as caught:
        read(variables)
    assert next(iter(variables)) in str(caught.value)


@pytest.mark.parametrize("arguments", [(), ("--suite", "libero_goal", "--tiny")])
def test_getting_a_checkpoint_needs_exactly_one_wish(arguments):
    done = start("-m", "services.gr00t.checkpoints", *arguments)
    assert done.returncode != 0 and "--tiny" in done.stderr, done.stderr


def test_unreachable_hub_is_reported(tmp_path):
    done = start("-m", "services.gr00t.checkpoints", "--suite", "base", VLALAB_VOLUME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "nvidia/GR00T-N1.5-3B" in done.stderr and "was not downloaded" in done.stderr
    assert str(tmp_path / "checkpoints" / "GR00T-N1.5-3B") in done.stderr
