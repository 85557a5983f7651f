"""From source ids to a translation: greedy search takes the best word at each step, beam search keeps several.

Both take a batch of sentences, drop those that have ended, and keep keys and values of earlier words in a cache.
`use_cache=False` computes everything anew at each step, which is slower and gives the same translations.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from tokenizers import Tokenizer
from torch import Tensor

from services.ws_mdl.transformer.dataset import Special, causal_mask, pad_rows, padding_mask
from services.ws_mdl.transformer.model import Transformer
from services.ws_mdl.transformer.tokenization import detokenize


class NextWord:
    """Scores for each sentence's next word, given the words so far."""

    def __init__(
        self, model: Transformer, source: Tensor, source_mask: Tensor, special: Special, use_cache: bool
    ) -> None:
        self.model = model
        self.source_mask = source_mask  # (batch, 1, 1, src seq)
        self.encoder_output = model.encode(source, source_mask)  # (batch, src seq, d_model)
        self.cache = model.new_cache() if use_cache else None
        self.never = [special.pad, special.sos]  # these are no words

    def logits(self, words: Tensor) -> Tensor:
        """Returns float [batch, vocabulary], the logits after `words` [batch, words so far]."""
        if self.cache:
            words, mask = words[:, -1:], None  # the last word may look at all before it
        else:
            mask = causal_mask(words.shape[1]).to(words.device)
        x = self.model.decode(self.encoder_output, self.source_mask, words, mask, self.cache)
        logits = self.model.project(x[:, -1]).float()
        logits[:, self.never] = float("-inf")
        return logits

    def select(self, rows: Tensor) -> None:
        """Keeps these sentences, in this order."""
        self.encoder_output, self.source_mask = self.encoder_output[rows], self.source_mask[rows]
        for own, cross in self.cache or []:
            own.select(rows)
            cross.select(rows)


@torch.inference_mode()
def greedy_decode(
    model: Transformer, source: Tensor, source_mask: Tensor, special: Special, max_len: int, use_cache: bool = True
) -> list[list[int]]:
    """Returns each sentence's translation as ids, [SOS] and [EOS] left out, at most max_len - 1 long.

    source int64 [batch, seq], source_mask bool [batch, 1, 1, seq], special: the target's special tokens.
    """
    next_word = NextWord(model, source, source_mask, special, use_cache)
    words = torch.full((len(source), 1), special.sos, device=source.device)
    row_of = torch.arange(len(source), device=source.device)  # which sentence each row still open is
    translations: list[list[int]] = [[] for _ in source]
    while len(row_of) and words.shape[1] < max_len:
        best = next_word.logits(words).argmax(dim=-1)  # (batch)
        words = torch.cat([words, best[:, None]], dim=1)
        ended = best == special.eos
        if ended.any():
            for row, ids in zip(row_of[ended].tolist(), words[ended, 1:-1].tolist(), strict=True):
                translations[row] = ids
            stays = (~ended).nonzero().squeeze(1)
            words, row_of = words[stays], row_of[stays]
            next_word.select(stays)
    for row, ids in zip(row_of.tolist(), words[:, 1:].tolist(), strict=True):
        translations[row] = ids
    return translations


def length_factor(length: Tensor | int, penalty: float) -> Tensor | float:
    """Returns what a translation's log probability is divided by (Wu et al., 2016); 1 with penalty 0."""
    return ((5 + length) / 6) ** penalty


@torch.inference_mode()
def beam_search(
    model: Transformer, source: Tensor, source_mask: Tensor, special: Special, max_len: int,
    beam: int = 4, penalty: float = 0.6, use_cache: bool = True,
    watch: Callable[[Tensor, Tensor, Tensor], None] | None = None,
) -> list[list[int]]:  # fmt: skip
    """Returns each sentence's best translation as ids among `beam` kept at every step; see greedy_decode for the rest.

    penalty: 0 compares log probabilities, which favours short translations; larger values favour longer ones.
    watch: told at every step, of each that is kept [batch, beam], whose continuation it is, its word, and the log
    probability of all of it.
    """
    if beam < 1:
        raise ValueError(f"beam is {beam}; expected at least 1")
    batch, device = len(source), source.device
    next_word = NextWord(model, source, source_mask, special, use_cache)
    next_word.select(torch.arange(batch, device=device).repeat_interleave(beam))  # (batch · beam) rows from here on
    words = torch.full((batch * beam, 1), special.sos, device=device)
    total = torch.full((batch, beam), float("-inf"), device=device)  # log probability of each kept translation
    total[:, 0] = 0.0  # at first all are equal, so only one counts
    ended = torch.zeros(batch, beam, dtype=torch.bool, device=device)
    length = torch.zeros(batch, beam, device=device)
    while words.shape[1] < max_len and not ended.all():
        log_p = next_word.logits(words).log_softmax(dim=-1).view(batch, beam, -1)
        log_p[ended] = float("-inf")
        log_p[..., special.pad][ended] = 0.0  # one that has ended goes on with padding, at no cost
        candidates = total[..., None] + log_p  # (batch, beam, vocabulary)
        lengths = length + (~ended)
        ranks = candidates / length_factor(lengths, penalty)[..., None]
        best = ranks.flatten(1).topk(beam).indices  # (batch, beam)
        parent, word = best // log_p.shape[-1], best % log_p.shape[-1]
        total = candidates.flatten(1).gather(1, best)
        if watch:
            watch(parent, word, total)
        ended = ended.gather(1, parent) | (word == special.eos)
        length = lengths.gather(1, parent)
        rows = (parent + beam * torch.arange(batch, device=device)[:, None]).flatten()
        words = torch.cat([words[rows], word.view(-1, 1)], dim=1)
        next_word.select(rows)
    cut_off = ~ended & ended.any(dim=1, keepdim=True)  # by max_len: they win only where none has ended
    winner = (total / length_factor(length, penalty)).masked_fill(cut_off, float("-inf")).argmax(dim=1)  # (batch)
    chosen = words.view(batch, beam, -1)[torch.arange(batch, device=device), winner, 1:]
    return [_before_end(ids, special) for ids in chosen.tolist()]


def _before_end(ids: list[int], special: Special) -> list[int]:
    return ids[: ids.index(special.eos)] if special.eos in ids else ids


def encode_sources(sentences: list[str], tokenizer_src: Tokenizer, seq: int) -> Tensor:
    """Returns int64 [sentences, longest]: [SOS] source [EOS] [PAD] …; raises ValueError for one longer than `seq`."""
    special = Special.of(tokenizer_src)
    rows = [[special.sos, *encoding.ids, special.eos] for encoding in tokenizer_src.encode_batch(sentences)]
    for sentence, row in zip(sentences, rows, strict=True):
        if len(row) == 2:
            raise ValueError(f"sentence {sentence!r} has no words; expected at least one")
        if len(row) > seq:
            raise ValueError(f"sentence {sentence[:40]!r}… has {len(row)} tokens; the model takes at most {seq}")
    return pad_rows(rows, special.pad)


def translate(
    model: Transformer, sentences: list[str], tokenizer_src: Tokenizer, tokenizer_tgt: Tokenizer,
    *, seq: int, beam: int = 1, penalty: float = 0.6, batch: int = 64,
) -> list[str]:  # fmt: skip
    """Returns the translations, in the order of the sentences; beam 1 is greedy search."""
    device = next(model.parameters()).device
    pad, special = Special.of(tokenizer_src).pad, Special.of(tokenizer_tgt)
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))  # like lengths together
    translations = [""] * len(sentences)
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        source = encode_sources([sentences[i] for i in chosen], tokenizer_src, seq).to(device)
        max_len = min(seq, 3 * source.shape[1] + 10)  # no real translation is longer; a bad model never ends
        mask = padding_mask(source, pad)
        if beam == 1:
            found = greedy_decode(model, source, mask, special, max_len)
        else:
            found = beam_search(model, source, mask, special, max_len, beam, penalty)
        for i, ids in zip(chosen, found, strict=True):
            translations[i] = detokenize(tokenizer_tgt, ids)
    return translations
