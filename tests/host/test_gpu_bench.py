"""`./lab bench gpu` as far as no environment is needed: its options, and parts that cannot run."""

import json
import subprocess
import sys

import pytest

from bench import gpu
from vlalab import cli
from vlalab.commands import programs
from vlalab.host import paths
from vlalab.host.console import LabError


def run_gpu_bench(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.gpu", "--tiny", *options]
    return subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True)


def test_an_unknown_part_is_named_with_those_there_are():
    done = run_gpu_bench("--parts", "openvla,gr00d")
    assert done.returncode == 1 and "gr00d" in done.stderr and "openvla_nf4" in done.stderr


def test_parts_without_time_are_skipped_and_stored(tmp_path):
    done = run_gpu_bench("--minutes", "0", "--parts", "gr00t,minivla", "--out", str(tmp_path))
    stored = json.loads((tmp_path / "results.json").read_text())
    assert done.returncode == 0 and stored["machine"].endswith("cores")
    assert [part["status"] for part in stored["parts"].values()] == ["skipped", "skipped"]
    assert "gr00t: skipped: --minutes are over" in done.stdout


def test_a_part_ends_at_its_own_limit_and_the_others_still_run():
    result = gpu.start_part("minivla", 60.0, 0.01, ["--tiny"])
    assert result["status"] == "failed" and "--part-minutes" in result["reason"]
    assert gpu.start_part("minivla", 0.0, 60.0, ["--tiny"])["status"] == "skipped"


def test_the_table_says_which_targets_were_missed(capsys):
    figures = [
        {"name": name, "value": value, "unit": "ms", "target": "<=45", "met": gpu.is_met(value, "<=45")}
        for name, value in (("fast", 45.0), ("slow", 45.1))
    ]
    gpu.print_table({"openvla": {"status": "ok", "reason": "", "figures": figures}})
    fast, slow = capsys.readouterr().out.splitlines()[-2:]
    assert fast == "| openvla | fast | 45 ms | <=45 |" and slow.endswith("| <=45, **missed** |")
    assert gpu.is_met(150.0, ">=150") and not gpu.is_met(149.0, ">=150") and gpu.is_met(0.0, "none")


@pytest.mark.parametrize(
    ("own", "this", "expected"),
    [(0, 0, "own"), (0, 1, "own"), (1, 0, "this"), (1, 1, "own"), (None, 1, "this")],
)
def test_a_part_runs_where_torch_sees_a_gpu(own, this, expected, tmp_path, monkeypatch):
    """own, this: exit status of each Python when asked for a GPU; None: the environment is not made."""
    pythons = {"own": tmp_path / "images" / "openvla" / ".venv" / "bin" / "python", "this": tmp_path / "python"}
    for name, status in (("own", own), ("this", this)):
        if status is not None:
            pythons[name].parent.mkdir(parents=True, exist_ok=True)
            pythons[name].write_text(f"#!/bin/sh\nexit {status}\n")
            pythons[name].chmod(0o755)
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "executable", str(pythons["this"]))
    gpu.python_of.cache_clear()
    assert gpu.python_of("openvla") == str(pythons[expected])
    gpu.python_of.cache_clear()


def test_minutes_are_a_flag_of_this_benchmark(monkeypatch):
    calls = []
    monkeypatch.setattr(programs, "run_benchmark", lambda *arguments: calls.append(arguments) or 0)
    with pytest.raises(LabError, match="--minutes is for benchmark gpu"):
        cli.run(["bench", "sim", "--minutes", "5"])
    cli.run(["bench", "gpu", "--minutes", "0.5", "--options=--tiny"])
    assert calls == [("gpu", False, "--tiny --minutes 0.5")]
