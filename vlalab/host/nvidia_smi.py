"""Rows of `nvidia-smi --query-…`."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess

ASK_S = 5.0  # a suspended GPU takes seconds to answer
NO_DEVICES = "No devices were found"  # printed by nvidia-smi if the driver has no GPU


def query(text: str, timeout_s: float) -> list[list[str]]:
    """Return the rows of `nvidia-smi --query-…`, each a list of stripped cells; none if it is not installed.

    Raise OSError with its message if it fails.
    """
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-{text}", "--format=csv,noheader,nounits"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise OSError(f"nvidia-smi did not answer within {timeout_s:g} s") from None
    output = (process.stdout + process.stderr).strip()
    if process.returncode != 0 and NO_DEVICES not in output:
        raise OSError(output.splitlines()[0] if output else f"nvidia-smi exited with status {process.returncode}")
    lines = process.stdout.splitlines() if process.returncode == 0 else []
    return [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]


@functools.cache
def capabilities() -> tuple[tuple[int, int], ...]:
    """Return the compute capability of each GPU; none if nvidia-smi fails, which other checks report."""
    try:
        rows = query("gpu=compute_cap", ASK_S)
    except OSError:
        return ()
    matches = (re.fullmatch(r"(\d+)\.(\d+)", row[0]) for row in rows)
    return tuple((int(match[1]), int(match[2])) for match in matches if match)
