"""The smoke test of GR00T's environment; images/common/selftest.py runs it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from images.common.selftest import expect

MODULES = (
    "torchvision", "transformers", "tokenizers", "av", "pyarrow", "h5py", "scipy", "onnxruntime", "tensorboard", "tyro",
)  # fmt: skip


def check_inference() -> str:
    """Check one inference with a tiny random checkpoint: images, state and instruction in, a chunk of actions out."""
    from services.gr00t.__main__ import ServiceSettings, prepare
    from services.gr00t.checkpoint import tiny

    with tempfile.TemporaryDirectory() as directory:
        made = tiny.make(Path(directory) / "gr00t-tiny")
        policy = prepare(ServiceSettings(checkpoint=str(made), device="cpu"))[0]()
        chunk = policy.act([policy.example(128)])[0]
    if isinstance(chunk, Exception):
        raise chunk
    expect(chunk.actions.shape == (16, 7), f"the actions' shape is {chunk.actions.shape}, expected (16, 7)")
    return f"a chunk of {len(chunk.actions)} actions, {policy.info().details['attention']}"


SERVICES = {"inference": check_inference}
