"""From source sentences to translations, with a trained model.

Greedy search takes the best token at each step, beam search keeps several hypotheses. Both work on batches, drop
finished sentences, and cache keys and values of earlier tokens. Without the cache (`use_cache=False`) each step
recomputes everything: slower, with the same translations.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from services.ws_mdl.epochs import run_files
from services.ws_mdl.transformer.config import PREFIX, Config
from services.ws_mdl.transformer.dataset import Special, causal_mask, pad_rows, padding_mask
from services.ws_mdl.transformer.model import Transformer, get_model, load_into
from services.ws_mdl.transformer.tokenization import detokenize, load_tokenizer
from vla_common.volume import Volume
from vla_modelkit.training.machine import choose_machine
from vla_modelkit.training.weights import WeightFiles


class NextWord:
    """Scores for each sentence's next token, given the tokens so far."""

    def __init__(
        self, model: Transformer, source: Tensor, source_mask: Tensor, special: Special, use_cache: bool
    ) -> None:
        self.model = model
        self.source_mask = source_mask  # (batch, 1, 1, src seq)
        self.encoder_output = model.encode(source, source_mask)  # (batch, src seq, d_model)
        self.cache = model.new_cache() if use_cache else None
        self.never = [special.pad, special.sos]  # never generated

    def logits(self, ids: Tensor) -> Tensor:
        """Return the logits of the next token, float [batch, vocabulary]; ids [batch, tokens so far]."""
        if self.cache:
            ids, mask = ids[:, -1:], None  # the last token attends to all cached ones
        else:
            mask = causal_mask(ids.shape[1]).to(ids.device)
        x = self.model.decode(self.encoder_output, self.source_mask, ids, mask, self.cache)
        logits = self.model.project(x[:, -1]).float()
        logits[:, self.never] = float("-inf")
        return logits

    def select(self, rows: Tensor) -> None:
        """Keep these sentences, in this order."""
        self.encoder_output, self.source_mask = self.encoder_output[rows], self.source_mask[rows]
        for cache in (layer_cache for pair in self.cache or [] for layer_cache in pair):
            cache.select(rows)


@torch.inference_mode()
def greedy_decode(
    model: Transformer, source: Tensor, source_mask: Tensor, special: Special, max_len: int, use_cache: bool = True
) -> list[list[int]]:
    """Return each sentence's translation as ids, [SOS] and [EOS] left out, at most max_len - 1 long.

    source int64 [batch, seq], source_mask bool [batch, 1, 1, seq], special: the target's special tokens.
    """
    next_word = NextWord(model, source, source_mask, special, use_cache)
    tokens = torch.full((len(source), 1), special.sos, device=source.device)
    row_of = torch.arange(len(source), device=source.device)  # sentence of each unfinished row
    translations: list[list[int]] = [[] for _ in source]
    while len(row_of) and tokens.shape[1] < max_len:
        best = next_word.logits(tokens).argmax(dim=-1)  # (batch)
        tokens = torch.cat([tokens, best[:, None]], dim=1)
        ended = best == special.eos
        if ended.any():
            for row, ids in zip(row_of[ended].tolist(), tokens[ended, 1:-1].tolist(), strict=True):
                translations[row] = ids
            open_rows = (~ended).nonzero().squeeze(1)
            tokens, row_of = tokens[open_rows], row_of[open_rows]
            next_word.select(open_rows)
    for row, ids in zip(row_of.tolist(), tokens[:, 1:].tolist(), strict=True):
        translations[row] = ids
    return translations


def length_factor(length: Tensor | int, penalty: float) -> Tensor | float:
    """Return what a translation's log probability is divided by (Wu et al., 2016); 1 with penalty 0."""
    return ((5 + length) / 6) ** penalty


@torch.inference_mode()
def beam_search(
    model: Transformer, source: Tensor, source_mask: Tensor, special: Special, max_len: int,
    beam: int = 4, penalty: float = 0.6, use_cache: bool = True,
    watch: Callable[[Tensor, Tensor, Tensor], None] | None = None,
) -> list[list[int]]:  # fmt: skip
    """Return each sentence's translation by beam search of width `beam`; other arguments as in greedy_decode.

    penalty: 0 compares log probabilities, which favours short translations; larger values favour longer ones.
    watch: called at every step with the hypotheses' parents, tokens and log probabilities, each [batch, beam].
    """
    if beam < 1:
        raise ValueError(f"beam is {beam}; expected at least 1")
    batch, device = len(source), source.device
    next_word = NextWord(model, source, source_mask, special, use_cache)
    next_word.select(torch.arange(batch, device=device).repeat_interleave(beam))  # (batch · beam) rows from here on
    tokens = torch.full((batch * beam, 1), special.sos, device=device)
    total = torch.full((batch, beam), float("-inf"), device=device)  # log probability of each hypothesis
    total[:, 0] = 0.0  # all hypotheses start equal, so only one counts
    ended = torch.zeros(batch, beam, dtype=torch.bool, device=device)
    length = torch.zeros(batch, beam, device=device)
    while tokens.shape[1] < max_len and not ended.all():
        log_p = next_word.logits(tokens).log_softmax(dim=-1).view(batch, beam, -1)
        log_p[ended] = float("-inf")
        log_p[..., special.pad][ended] = 0.0  # a finished hypothesis continues with padding at no cost
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
        tokens = torch.cat([tokens[rows], word.view(-1, 1)], dim=1)
        next_word.select(rows)
    cut_off = ~ended & ended.any(dim=1, keepdim=True)  # truncated hypotheses win only if none has finished
    winner = (total / length_factor(length, penalty)).masked_fill(cut_off, float("-inf")).argmax(dim=1)  # (batch)
    best_ids = tokens.view(batch, beam, -1)[torch.arange(batch, device=device), winner, 1:].tolist()
    return [ids[: ids.index(special.eos)] if special.eos in ids else ids for ids in best_ids]


def encode_sources(sentences: list[str], tokenizer_src: Tokenizer, seq: int) -> Tensor:
    """Return int64 [sentences, longest]: [SOS] source [EOS] [PAD] …. Raises ValueError for more than `seq` tokens."""
    special = Special.of(tokenizer_src)
    rows = [[special.sos, *encoding.ids, special.eos] for encoding in tokenizer_src.encode_batch(sentences)]
    for sentence, row in zip(sentences, rows, strict=True):
        if len(row) == 2:
            raise ValueError(f"sentence {sentence!r} is empty; expected at least one word")
        if len(row) > seq:
            raise ValueError(f"sentence {sentence[:40]!r}… has {len(row)} tokens; the model takes at most {seq}")
    return pad_rows(rows, special.pad)


def translate(
    model: Transformer, sentences: list[str], tokenizer_src: Tokenizer, tokenizer_tgt: Tokenizer,
    *, seq: int, beam: int = 1, penalty: float = 0.6, batch: int = 64,
) -> list[str]:  # fmt: skip
    """Return the translations, in the order of the sentences; beam 1 is greedy search."""
    device = next(model.parameters()).device
    pad, special = Special.of(tokenizer_src).pad, Special.of(tokenizer_tgt)
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))  # batches of similar length
    translations = [""] * len(sentences)
    for start in range(0, len(order), batch):
        numbers = order[start : start + batch]
        source = encode_sources([sentences[i] for i in numbers], tokenizer_src, seq).to(device)
        max_len = min(seq, 3 * source.shape[1] + 10)  # no real translation is longer; a bad model never ends
        mask = padding_mask(source, pad)
        if beam == 1:
            results = greedy_decode(model, source, mask, special, max_len)
        else:
            results = beam_search(model, source, mask, special, max_len, beam, penalty)
        for i, ids in zip(numbers, results, strict=True):
            translations[i] = detokenize(tokenizer_tgt, ids)
    return translations


class TrainedTransformer(NamedTuple):
    """A trained model with its configuration and tokenizers."""

    model: Transformer
    config: Config
    tokenizer_src: Tokenizer
    tokenizer_tgt: Tokenizer
    path: Path


def find_run(volume: Volume, name: str | None) -> Path:
    """Return the directory of a trained run; None: the newest. Raises ValueError if there is none."""
    return run_files(Config, PREFIX, volume, name).directory


def load_trained(directory: Path, device: str = "auto", epoch: int | None = None) -> TrainedTransformer:
    """Load a run's model after an epoch; None: the newest.

    Raises ValueError for missing, damaged or mismatched weights or tokenizers.
    """
    machine, files = choose_machine(device), WeightFiles(directory, PREFIX)
    checkpoint = files.load_latest(machine.device) if epoch is None else files.load_epoch(epoch, machine.device)
    if checkpoint is None or "config" not in checkpoint[1]:
        raise ValueError(f"{directory} has no weights of this lab; train or resume it with ./lab train transformer")
    path, state = checkpoint
    config = Config.of(state["config"])
    source, target = (load_tokenizer(directory / f"tokenizer_{language}.json") for language in config.languages)
    model = get_model(config, source.get_vocab_size(), target.get_vocab_size()).to(machine.device)
    load_into(model, path, state, config.stored(), "restore the tokenizers of its training")
    return TrainedTransformer(model.eval(), config, source, target, path)
