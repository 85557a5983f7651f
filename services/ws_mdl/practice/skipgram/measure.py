"""What vectors of words know, whoever learned them: which word is missing, one or many, nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_score
from tokenizers import Tokenizer
from torch import Tensor

from services.ws_mdl.practice.bert.data import Examples
from services.ws_mdl.practice.bert.model import BERT, NOT_ASKED
from services.ws_mdl.practice.skipgram.data import Words, neighbours
from services.ws_mdl.practice.skipgram.model import SkipGram, word_scores
from services.ws_mdl.practice.text import Ids
from services.ws_mdl.transformer.dataset import pad_rows

TRUSTS = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
TRIED = 4000  # words learned from, on which it is chosen how much neighbours count
FOLDS = 5


def trust_of(model: SkipGram, data: Words) -> float:
    """Returns how much neighbours should count in `word_scores`: what tells most words that were learned from."""
    places = data.places[:: max(1, len(data) // TRIED)]
    near = neighbours(data.train, places, data.window)
    return max(TRUSTS, key=lambda trust: told_right(model, near, data.train[places], data.asked, trust))


def told_right(model: SkipGram, near: Tensor, words: Tensor, counts: Tensor, trust: float) -> float:
    """Returns the share (0 to 1) of words [n] that their neighbours [n, 2 · window] tell."""
    device = model.middle.weight.device
    right = sum(
        int((word_scores(model, near, counts.to(device), trust).argmax(dim=1) == words).sum())
        for near, words in zip(near.to(device).split(512), words.to(device).split(512), strict=True)
    )
    return right / max(1, len(words))


# --- at a BERT's masked places ------------------------------------------------------------------------------


def hidden_places(examples: Examples, mask: int) -> Tensor:
    """Returns where a word is asked for and nothing of it is seen, bool [batch, seq]."""
    return (examples.labels != NOT_ASKED) & (examples.ids == mask)


@torch.inference_mode()
def bert_tells(model: BERT, examples: Examples, mask: int) -> float:
    """Returns the share of hidden words that a BERT tells."""
    right = count = 0
    for rows in torch.arange(len(examples.ids)).split(64):
        part = Examples(*(one[rows] for one in examples))
        asked = hidden_places(part, mask)
        found = model.words(model.encode(part.ids, part.segments)[asked]).argmax(dim=-1)
        right, count = right + int((found == part.labels[asked]).sum()), count + int(asked.sum())
    return right / max(1, count)


def skipgram_tells(model: SkipGram, data: Words, examples: Examples, special: Sequence[int], mask: int) -> float:
    """Returns the share of the same hidden words that their neighbours tell; special tokens are no neighbours."""
    ids = torch.nn.functional.pad(examples.ids, (data.window, data.window), value=data.pad)
    ids = ids.masked_fill(torch.isin(ids, torch.tensor([*special])), data.pad)
    asked = torch.nn.functional.pad(hidden_places(examples, mask), (data.window, data.window))
    places = asked.flatten().nonzero().squeeze(1)
    near = neighbours(ids.flatten(), places, data.window)
    words = examples.labels[hidden_places(examples, mask)]
    return told_right(model, near, words, data.asked, trust_of(model, data))


# --- a probe ------------------------------------------------------------------------------------------------


def number_pairs(tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """Returns pairs of tokens that differ by an s at the end, as "light" and "lights": one, and several."""
    known = tokenizer.get_vocab()
    return sorted((known[word], known[word + "s"]) for word in known if len(word) > 2 and word + "s" in known)


def probe(vectors: Tensor, pairs: Sequence[tuple[int, int]]) -> float:
    """Returns how often a linear probe tells one from several, 0 to 1, half by chance.

    No vector was made of a word's letters. Both words of a pair are in the same fold: none is told by its twin.
    """
    words = torch.tensor(pairs).flatten()
    labels, groups = torch.tensor([0, 1] * len(pairs)), torch.arange(len(pairs)).repeat_interleave(2)
    x = torch.nn.functional.normalize(vectors[words].float().cpu(), dim=-1)
    judge = LogisticRegression(C=10.0, max_iter=1000)
    return float(cross_val_score(judge, x.numpy(), labels, groups=groups, cv=GroupKFold(FOLDS)).mean())


@torch.inference_mode()
def mean_vectors(model: BERT, blocks: Sequence[Ids], tokenizer: Tokenizer) -> Tensor:
    """Returns the mean of what a BERT says of each token where it stands, float [vocabulary, d_model]; else 0."""
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
