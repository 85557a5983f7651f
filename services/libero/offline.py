"""`python -m services.libero.offline --dataset D --policy-url URL`: LIBERO's profiles; see `vla_evaluation.offline`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from services.libero.benchmark import BENCHMARK
from vla_common import entrypoint
from vla_datasets import libero
from vla_evaluation.offline import program


def main(arguments: Sequence[str]) -> int:
    """Score a policy on a data set, or ask it about one row; return the exit code."""
    cameras = {camera: libero.video_key(camera) for camera in libero.CAMERAS}
    return program.main(BENCHMARK, cameras, arguments, "python -m services.libero.offline")


if __name__ == "__main__":
    entrypoint.run(main, sys.argv[1:])
