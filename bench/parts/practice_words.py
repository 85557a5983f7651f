"""Skip-gram and masked pre-training on the same words: who tells a hidden one, one from several, what is nearest."""

from __future__ import annotations

import torch

from bench.common import figure
from services.ws_mdl.practice.bert import train as bert
from services.ws_mdl.practice.bert.data import OWN
from services.ws_mdl.practice.skipgram import measure
from services.ws_mdl.practice.skipgram.train import Config, Training, get_training, neighbours_of
from services.ws_mdl.transformer.tokenization import SPECIAL

__all__ = ["CONFIG", "compared", "get_training"]

CONFIG = Config()


def compared(skipgram: Training, masked: bert.Training) -> list[bool]:
    """Prints what both come to at the same questions; returns whether each figure meets its target."""
    words, name = skipgram.data, masked.data.tokenizer
    known = words.tokenizer.get_vocab()
    assert known.items() <= name.get_vocab().items(), "the same corpus gives both the same words"
    special = [name.token_to_id(token) for token in (*SPECIAL, *OWN)]
    mask, held = masked.data.id("[MASK]"), masked.held
    ours = 100 * measure.skipgram_tells(skipgram.averaged, words, held, special, mask)
    theirs = 100 * measure.bert_tells(masked.averaged, held, mask)
    pairs = measure.number_pairs(words.tokenizer)
    table = masked.averaged.embed.embedding.weight.detach()
    vectors = {
        "skip-gram": skipgram.averaged.middle.weight.detach(),
        "BERT's table": table,
        "BERT's means": measure.mean_vectors(masked.averaged, masked.data.train.blocks, name),
    }
    probes = {kind: 100 * measure.probe(found, pairs) for kind, found in vectors.items()}
    told = ", ".join(f"{kind} {share:.1f} %" for kind, share in probes.items())
    print(f"\none or several, {len(pairs)} pairs: {told}")
    for kind, found in vectors.items():
        print(f"{kind}, nearest:", *neighbours_of(found[: len(known)], words), sep="\n  ")
    again = 100 * measure.probe(torch.randn(table.shape, generator=torch.Generator().manual_seed(0)), pairs)
    print(f"the probe of drawn vectors: {again:.1f} %")
    return [
        figure("practice.skipgram_hidden_words", ours, "%", ">=0"),
        figure("practice.bert_hidden_words_over_skipgram", theirs / max(ours, 1e-9), "×", ">=1"),
        figure("practice.skipgram_number_probe", probes["skip-gram"], "%", ">=55"),
        figure("practice.bert_number_probe", max(probes["BERT's table"], probes["BERT's means"]), "%", ">=50"),
    ]
