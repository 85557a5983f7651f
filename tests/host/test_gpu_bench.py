"""`./lab bench gpu` as far as no environment is needed: its options, and parts that cannot run."""

import json
import subprocess
import sys

from vlalab.host import paths


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
