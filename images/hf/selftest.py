"""Does this environment do what Hugging Face practice needs? A part of its image's build: images/common/selftest.py."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here asks the hub

from images.common.selftest import check_attention, check_imports, check_torch, expect, one_thread, run

MODULES = (
    "transformers", "datasets", "evaluate", "accelerate", "peft", "tokenizers", "sentencepiece", "safetensors.torch",
    "huggingface_hub", "google.protobuf", "sklearn.metrics", "matplotlib.pyplot", "jupyterlab", "jupyter_server",
    "ipykernel", "ipywidgets", "tyro", "rich",
)  # fmt: skip


def check_round_trip() -> str:
    """Checks that a model of each kind is trained for a step, saved, and loaded with the same weights."""
    import torch
    from transformers import AutoModel, BertConfig, GPT2Config, T5Config

    configs = (
        BertConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16),
        GPT2Config(vocab_size=20, n_embd=16, n_layer=1, n_head=2, n_positions=16),
        T5Config(vocab_size=20, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2),
    )
    for config in configs:
        torch.manual_seed(0)
        model = AutoModel.from_config(config)
        inputs = {"input_ids": torch.arange(8)[None]}
        inputs |= {"decoder_input_ids": inputs["input_ids"]} if config.is_encoder_decoder else {}
        model(**inputs).last_hidden_state.square().mean().backward()
        torch.optim.AdamW(model.parameters(), lr=1e-3).step()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            back = AutoModel.from_pretrained(folder).state_dict()
        expect(
            all(torch.equal(tensor, back[name]) for name, tensor in model.state_dict().items()),
            f"a {config.model_type} came back with other weights than it was saved with",
        )
    return f"{len(configs)} kinds of models"


def check_labs() -> str:
    """Checks that the labs' tokenizers can be made and cut a sentence, and that the service's module is there."""
    check_imports(("vla_notebooks.__main__", "services.hf.classify", "services.hf.headlines", "services.hf.translate"))
    from services.hf.made import texts, tokenizers

    said = list(texts.sentences(100))
    sizes = {}
    for kind, make in tokenizers.KINDS.items():
        tokenizer = make(said, 400)
        sizes[kind] = len(tokenizer(said[0])["input_ids"])
    expect(all(sizes.values()), f"pieces of {said[0]!r}: {sizes}; at least one each is expected")
    return ", ".join(f"{kind} {size}" for kind, size in sizes.items()) + " pieces of one sentence"


if __name__ == "__main__":
    one_thread()
    dependencies = {
        "torch": lambda: check_torch("hf", "2.6.0", "12.4"),
        "attention": check_attention,
        "imports": lambda: check_imports(MODULES),
        "round trip": check_round_trip,
    }
    sys.exit(run("hf", dependencies, {"labs": check_labs}))
