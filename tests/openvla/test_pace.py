"""A long download says how long it will take: by the hub's sizes and the bytes that come, against a hub on loopback."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.openvla.hub import hub
from vla_modelkit import download

GB = 10**9


@pytest.mark.parametrize(
    ("come", "seconds", "line"),
    [
        (0.15 * GB, 15, "this will take about 24 min 45 s more at 10.0 MB/s; the same command resumes it"),
        (0.015 * GB, 15, "this will take about 4 h 09 min more at 1.0 MB/s; the same command resumes it"),
        (1.5 * GB, 15, None),
    ],
)
def test_the_estimate_is_what_is_left_by_the_speed(come, seconds, line):
    assert download.estimate(int(15 * GB), int(come), seconds) == line


def test_bytes_of_unfinished_files_count_and_reserved_ones_do_not(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.incomplete").write_bytes(bytes(range(256)) * 400)
    with (tmp_path / "reserved").open("wb") as file:
        file.truncate(GB)
    assert 102_400 <= download.written(tmp_path) < 10**6


PROGRAM = """
import sys
from pathlib import Path
from services.openvla.checkpoint.published import DOWNLOAD_PATTERNS
from vla_modelkit import download
download.MEASURED_S, download.LONG_S = 0.1, float(sys.argv[2])
download.fetch("someone/openvla-small", "main", Path(sys.argv[1]), DOWNLOAD_PATTERNS)
"""


@pytest.mark.parametrize("long_s", ["1e-9", "1e12"])
def test_a_download_says_it_while_it_continues(checkpoints, tmp_path, long_s):
    directory = shutil.copytree(checkpoints(), tmp_path / "remote")
    with hub(directory, "someone/openvla-small") as server:
        server.pause_s = 0.4
        variables = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "hf"), "VLALAB_VOLUME": str(tmp_path)}
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "checkpoints" / "here"), long_s]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("this will take about") == (long_s == "1e-9"), done.stdout
