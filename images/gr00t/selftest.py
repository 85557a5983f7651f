"""The smoke test of GR00T's environment: a part of its image's build; see images/common/selftest.py."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from images.common.selftest import check_attention, check_imports, check_torch, expect, run, use_single_thread

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


if __name__ == "__main__":
    use_single_thread()
    dependencies = {
        "torch": lambda: check_torch("gr00t", {"": ("2.5.1", "12.4"), "cu130": ("2.11.0", "13.0")}),
        "attention": check_attention,
        "imports": lambda: check_imports(MODULES),
    }
    sys.exit(run("gr00t", dependencies, {"inference": check_inference}))
