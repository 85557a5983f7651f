"""Serves the GR00T policy over a model that fails at one instruction.

The network is played; policy and service are the real ones. What is raised are torch's own types with torch's own
words. A lost device stays lost.
"""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from services.gr00t.service.policy import Gr00tPolicy
from tests.gr00t.harness import info_of, layout_of
from vla_contract import serve

LEXICON = "die"
LINGER_S = 6.0  # so that a busy machine finds the time to look
ERRORS = {
    "assert": RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronous"),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle)`"),
    "cudnn": RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    "full": torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has 15.77 GiB"),
}
HEAD = SimpleNamespace(horizon=2, action_dim=32, state_dim=64)


class Network:
    """Takes one instruction badly; answers no motion to others."""

    def __init__(self, kind):
        self.kind, self.lost = kind, False
        self.model = SimpleNamespace(config=SimpleNamespace(head=HEAD, vision={"image_size": 28}))

    def infer(self, rows, noise):
        hit = any(LEXICON in row.ids for row in rows)
        self.lost = self.lost or (hit and self.kind != "full")
        if hit or self.lost:
            raise ERRORS[self.kind]
        return np.zeros((len(rows), 2, 32), np.float32)


def run(kind: str, port: int, log: Path) -> None:
    """Serves; what it says goes into `log`."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT, 0o600), 2)
    layout = layout_of("libero")
    words = SimpleNamespace(ids=str.split)
    serve(Gr00tPolicy(Network(kind), words, layout, info_of(layout, 2)), port=port, linger_s=LINGER_S)
