"""The smoke test of the Hugging Face environment; images/common/selftest.py runs it."""

from __future__ import annotations

from images.common.selftest import check_imports, expect

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


SERVICES = {"labs": check_labs}
