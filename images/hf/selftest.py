"""The smoke test of the Hugging Face environment: a part of its image's build; see images/common/selftest.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here asks the hub

from images.common.selftest import check_attention, check_imports, check_torch, expect, run, use_single_thread

MODULES = (
    "transformers", "datasets", "evaluate", "accelerate", "peft", "tokenizers", "sentencepiece", "safetensors.torch",
    "huggingface_hub", "google.protobuf", "sklearn.metrics", "matplotlib.pyplot", "jupyterlab", "jupyter_server",
    "ipykernel", "ipywidgets", "tyro", "rich", "transformers.models.bert", "transformers.models.t5",
)  # fmt: skip


def check_labs() -> str:
    """Check that the labs' tokenizers can be made and cut a sentence, and that the service's module is there."""
    check_imports(("vla_notebooks.__main__", "services.hf.classify", "services.hf.headlines", "services.hf.translate"))
    from services.hf.made import texts, tokenizers

    sentences = list(texts.sentences(100))
    sizes = {kind: len(make(sentences, 400)(sentences[0])["input_ids"]) for kind, make in tokenizers.KINDS.items()}
    expect(all(sizes.values()), f"pieces of {sentences[0]!r}: {sizes}; at least one each is expected")
    return ", ".join(f"{kind} {size}" for kind, size in sizes.items()) + " pieces of one sentence"


if __name__ == "__main__":
    use_single_thread()
    dependencies = {
        "torch": lambda: check_torch("hf", {"": ("2.6.0", "12.4")}),
        "attention": check_attention,
        "imports": lambda: check_imports(MODULES),
    }
    sys.exit(run("hf", dependencies, {"labs": check_labs}))
