"""The real service, whose model fails at a picture of one grey: `python dying_service.py KIND FLAG …`.

What is raised are torch's own types with torch's own words, from where the model runs. A lost device stays lost.
"""

import runpy
import sys

import torch

from services.openvla.decoding.engine import Engine

GREY = 77
ERRORS = {
    "assert": RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronous"),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle)`"),
    "cudnn": RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    "full": torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has 15.77 GiB"),
}


def main() -> None:
    """Serves what the flags say."""
    kind, sys.argv[1:] = sys.argv[1], sys.argv[2:]
    generate, lost = Engine.generate, []

    def dying(self, pixels, *others, **named):
        hit = (pixels == GREY).all()
        if hit and kind != "full":
            lost.append(kind)
        if hit or lost:
            raise ERRORS[kind]
        return generate(self, pixels, *others, **named)

    Engine.generate = dying
    runpy.run_module("services.openvla", run_name="__main__")


if __name__ == "__main__":
    main()
