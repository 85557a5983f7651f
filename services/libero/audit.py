"""`python -m services.libero.audit --policy-url URL --suite libero_goal`: LIBERO's part of `vla_evaluation.audit`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from services.libero.benchmark import BENCHMARK
from vla_common import entrypoint
from vla_datasets import libero
from vla_evaluation.audit import program


def main(arguments: Sequence[str]) -> int:
    """Audit a policy; return 1 if a convention is wrong."""
    cameras = {camera: libero.video_key(camera) for camera in libero.CAMERAS}
    return program.main(BENCHMARK, cameras, arguments, "python -m services.libero.audit")  # type: ignore[arg-type]


if __name__ == "__main__":
    entrypoint.run(main, sys.argv[1:])
