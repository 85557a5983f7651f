"""Which exceptions mean a lost device: texts as torch and the libraries under it write them."""

import pytest

from vla_contract.server.engine import is_device_error


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


class AcceleratorError(RuntimeError):
    """Named as that of torch 2.8 and newer."""


ASYNCHRONOUS = "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below"
LOST = [
    RuntimeError("CUDA error: device-side assert triggered" + ASYNCHRONOUS),
    RuntimeError("CUDA error: an illegal memory access was encountered" + ASYNCHRONOUS),
    RuntimeError("CUDA error: unspecified launch failure"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb, m, n, k)`"),
    RuntimeError("CUDA driver error: device not ready"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph."),
    RuntimeError("cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    RuntimeError('NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":830'),
    Exception("cublasLt ran into an error!"),  # bitsandbytes
    AcceleratorError("unspecified launch failure"),
]
NOT_LOST = [
    None,
    OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 15.77 GiB"),
    RuntimeError("CUDA error: out of memory" + ASYNCHRONOUS),
    AcceleratorError("CUDA error: out of memory"),
    RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (1x7 and 8x8)"),
    ValueError("the model's scores are NaN or infinite"),
]


@pytest.mark.parametrize("error", LOST, ids=str)
def test_an_error_of_the_device_is_reported(error):
    assert is_device_error(error)


@pytest.mark.parametrize("error", NOT_LOST, ids=str)
def test_a_full_gpu_or_another_mistake_is_none(error):
    assert not is_device_error(error)


@pytest.mark.parametrize("from_none", [False, True])
def test_it_is_found_behind_what_was_raised_from_it(from_none):
    try:
        try:
            raise LOST[0]
        except RuntimeError as error:
            raise ValueError("the picture could not be encoded") from (None if from_none else error)
    except ValueError as error:
        assert is_device_error(error)


def test_a_ring_of_causes_ends():
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert not is_device_error(one)
