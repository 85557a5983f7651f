"""Skip-gram and masked pre-training on the same words: who tells a hidden one, one from several, what is nearest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_score
from tokenizers import Tokenizer
from torch import Tensor

from bench.common import figure
from services.ws_mdl.practice import bert
from services.ws_mdl.practice.bert import BERT, NOT_ASKED, OWN, Examples
from services.ws_mdl.practice.settings import Skipgram as Config
from services.ws_mdl.practice.skipgram import (
    SkipGram,
    Training,
    Words,
    get_training,
    neighbours,
    neighbours_of,
    told_right,
    trust_of,
)
from services.ws_mdl.practice.text import Ids
from services.ws_mdl.transformer.dataset import pad_rows
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
    ours = 100 * skipgram_tells(skipgram.averaged, words, held, special, mask)
    theirs = 100 * bert_tells(masked.averaged, held, mask)
    pairs = number_pairs(words.tokenizer)
    table = masked.averaged.embed.embedding.weight.detach()
    vectors = {
        "skip-gram": skipgram.averaged.middle.weight.detach(),
        "BERT's table": table,
        "BERT's means": mean_vectors(masked.averaged, masked.data.blocks, name),
    }
    probes = {kind: 100 * probe(found, pairs) for kind, found in vectors.items()}
    told = ", ".join(f"{kind} {share:.1f} %" for kind, share in probes.items())
    print(f"\none or several, {len(pairs)} pairs: {told}")
    for kind, found in vectors.items():
        print(f"{kind}, nearest:", *neighbours_of(found[: len(known)], words), sep="\n  ")
    again = 100 * probe(torch.randn(table.shape, generator=torch.Generator().manual_seed(0)), pairs)
    print(f"the probe of drawn vectors: {again:.1f} %")
    return [
        figure("practice.skipgram_hidden_words", ours, "%", ">=0"),
        figure("practice.bert_hidden_words_over_skipgram", theirs / max(ours, 1e-9), "×", ">=1"),
        figure("practice.skipgram_number_probe", probes["skip-gram"], "%", ">=55"),
        figure("practice.bert_number_probe", max(probes["BERT's table"], probes["BERT's means"]), "%", ">=50"),
    ]


# --- what vectors of words know, whoever learned them -------------------------------------------------------


def hidden_places(examples: Examples, mask: int) -> Tensor:
    """Return where a word is asked for and nothing of it is seen, bool [batch, seq]."""
    return (examples.labels != NOT_ASKED) & (examples.ids == mask)


@torch.inference_mode()
def bert_tells(model: BERT, examples: Examples, mask: int) -> float:
    """Return the share of hidden words that a BERT tells."""
    right = count = 0
    for rows in torch.arange(len(examples.ids)).split(64):
        part = Examples(*(one[rows] for one in examples))
        asked = hidden_places(part, mask)
        guesses = model.words(model.encode(part.ids, part.segments)[asked]).argmax(dim=-1)
        right, count = right + int((guesses == part.labels[asked]).sum()), count + int(asked.sum())
    return right / max(1, count)


def skipgram_tells(model: SkipGram, data: Words, examples: Examples, special: Sequence[int], mask: int) -> float:
    """Return the share of the same hidden words that their neighbours tell; special tokens are no neighbours."""
    ids = torch.nn.functional.pad(examples.ids, (data.window, data.window), value=data.pad)
    ids = ids.masked_fill(torch.isin(ids, torch.tensor([*special])), data.pad)
    asked = torch.nn.functional.pad(hidden_places(examples, mask), (data.window, data.window))
    places = asked.flatten().nonzero().squeeze(1)
    near = neighbours(ids.flatten(), places, data.window)
    words = examples.labels[hidden_places(examples, mask)]
    return told_right(model, near, words, data.asked, trust_of(model, data))


def number_pairs(tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """Return pairs of tokens that differ by an s at the end, as "light" and "lights": one, and several."""
    known = tokenizer.get_vocab()
    return sorted((known[word], known[word + "s"]) for word in known if len(word) > 2 and word + "s" in known)


def probe(vectors: Tensor, pairs: Sequence[tuple[int, int]]) -> float:
    """Return how often a linear probe tells one from several, 0 to 1, half by chance.

    No vector was made of a word's letters. Both words of a pair are in the same fold: none is told by its twin.
    """
    words = torch.tensor(pairs).flatten()
    labels, groups = torch.tensor([0, 1] * len(pairs)), torch.arange(len(pairs)).repeat_interleave(2)
    x = torch.nn.functional.normalize(vectors[words].float().cpu(), dim=-1)
    judge = LogisticRegression(C=10.0, max_iter=1000)
    return float(cross_val_score(judge, x.numpy(), labels, groups=groups, cv=GroupKFold(5)).mean())


@torch.inference_mode()
def mean_vectors(model: BERT, blocks: Sequence[Ids], tokenizer: Tokenizer) -> Tensor:
    """Return the mean of what a BERT says of each token where it stands, float [vocabulary, d_model]; else 0."""
    begin, end, pad = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]", "[PAD]"))
    sums = torch.zeros(tokenizer.get_vocab_size(), model.embed.d_model)
    counts = torch.zeros(len(sums))
    texts = sorted((ids for block in blocks for ids in block), key=len)
    for start in range(0, len(texts), 64):
        ids = pad_rows([[begin, *one[: model.positions.seq - 2], end] for one in texts[start : start + 64]], pad)
        x = model.encode(ids, torch.zeros_like(ids))
        sums.index_add_(0, ids.flatten(), x.flatten(0, 1))
        counts.index_add_(0, ids.flatten(), torch.ones(ids.numel()))
    return sums / counts.clamp(min=1).unsqueeze(1)
