"""Runs parts of `./lab bench gpu` with tiny models, as a user would, and reads what they stored."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import forked


def run_gpu_parts(out: Path, *names: str) -> dict[str, Any]:
    """Return the result of each part: status, reason, figures."""
    command = [sys.executable, "-m", "bench.gpu", "--tiny", "--quick", "--parts", ",".join(names), "--out", str(out)]
    done = subprocess.run(command, cwd=forked.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((out / "results.json").read_text())["parts"]
