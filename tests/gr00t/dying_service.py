"""Serves the GR00T policy over a model that fails at one instruction: `python dying_service.py KIND PORT`.

Upstream's transforms and model are played, so that its package need not be here; policy and service are the real ones.
What is raised are torch's own types with torch's own words. A lost device stays lost.
"""

import sys
from types import SimpleNamespace

import torch

from services.gr00t.attention import Attention
from services.gr00t.policy import TOKEN_IDS, ServedGr00t
from tests.gr00t.harness import layout_of
from vla_contract import serve

WORDS = "die"
ERRORS = {
    "assert": RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronous"),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle)`"),
    "cudnn": RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    "full": torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has 15.77 GiB"),
}


class DyingPolicy(ServedGr00t):
    """Fails where upstream's model would."""

    def infer(self, inputs, seeds):
        return self.policy.infer(inputs)


class Upstream:
    """Takes one instruction badly; answers no motion to others."""

    def __init__(self, kind):
        self.kind, self.lost, self.denoising_steps = kind, False, 4
        self.modality_config = {"action": SimpleNamespace(delta_indices=[0, 1])}

    def apply_transforms(self, values):
        hit = any(WORDS in str(value) for key, value in values.items() if key.startswith("annotation"))
        return {TOKEN_IDS: torch.ones(1, 3), "hit": torch.tensor([hit])}

    def infer(self, inputs):
        hit = bool(inputs["hit"].any())
        self.lost = self.lost or (hit and self.kind != "full")
        if hit or self.lost:
            raise ERRORS[self.kind]
        return torch.zeros(len(inputs["hit"]), 2, 7).numpy()


if __name__ == "__main__":
    kind, port = sys.argv[1], int(sys.argv[2])
    serve(DyingPolicy(Upstream(kind), layout_of("libero"), Attention("sdpa", ""), "cpu"), port=port, linger_s=1.0)
