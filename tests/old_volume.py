"""A volume that an earlier version made (57cf140), with all that a user would keep: tests/data/volume-57cf140.tar.xz.

A run and a recording of an episode each, a data set of the recording, and weights after an epoch of the Transformer,
diffusion, a practice lab and mini-VLA. Weights of the last two labs are zeros, so that the file stays small.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ARCHIVE = Path(__file__).parent / "data" / "volume-57cf140.tar.xz"
ROOT = ARCHIVE.parents[2]


@pytest.fixture
def old_volume(tmp_path: Path) -> Path:
    """The volume, unpacked."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path / "volume")
    return tmp_path / "volume"


def use(volume: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program of this environment on a volume."""
    variables = {**os.environ, "VLALAB_VOLUME": str(volume), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *words], env=variables, cwd=ROOT, capture_output=True, text=True, timeout=600
    )
