"""Tells by an exception whether the device under a policy may be lost: by names and words, for torch is not here."""

import re
from collections.abc import Iterator

_LOST = re.compile(
    r"CUDA error|CUDA driver|cudaError|cuBLAS|cuDNN|cuSOLVER|cuSPARSE|cuFFT|NVRTC|NVML|HIP error|Triton Error \[",
    re.IGNORECASE,
)


def is_device_error(error: BaseException | None) -> bool:
    """Tells whether this, or what it came from, is an error of the device or of one of its libraries.

    A GPU that is full is none: a smaller request may fit. What it says is a suspicion only, since some errors of CUDA
    pass with the request that made them.
    """
    return any(_is_device_error(one) for one in _chain(error))


def _is_device_error(error: BaseException) -> bool:
    kinds, text = {kind.__name__ for kind in type(error).__mro__}, str(error)
    if "OutOfMemoryError" in kinds or "error: out of memory" in text:
        return False
    return "AcceleratorError" in kinds or _LOST.search(text) is not None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
