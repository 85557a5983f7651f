"""The real service, whose model fails at a picture of one grey: the program itself, with flags.

What is raised are torch's own types with torch's own words, from where the model runs. A lost device stays lost.
"""

import functools
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from services.openvla.decoding.engine import Engine
from vla_modelkit import service

GREY = 77
LINGER_S = 6.0  # so that a busy machine finds the time to look
ERRORS = {
    "assert": RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronous"),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle)`"),
    "cudnn": RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    "full": torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has 15.77 GiB"),
}


def run(kind: str, flags: Sequence[str], log: Path) -> None:
    """Serves what the flags say; what it says goes into `log`."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT, 0o600), 2)
    sys.argv[1:] = flags
    generate, lost = Engine.generate, []

    def dying(self, pixels, *others, **named):
        hit = (pixels == GREY).all()
        if hit and kind != "full":
            lost.append(kind)
        if hit or lost:
            raise ERRORS[kind]
        return generate(self, pixels, *others, **named)

    Engine.generate = dying
    service.serve = functools.partial(service.serve, linger_s=LINGER_S)
    runpy.run_module("services.openvla", run_name="__main__")
