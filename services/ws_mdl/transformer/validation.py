"""How good a model is on sentences it has never seen: loss, and what its translations look like."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader

from services.ws_mdl.transformer.dataset import Batch
from services.ws_mdl.transformer.decode import translate
from services.ws_mdl.transformer.loss import TranslationLoss
from services.ws_mdl.transformer.tokenization import words
from vla_modelkit.training.machine import Machine


@dataclass(frozen=True)
class Sample:
    """A source sentence, its reference translation, and the model's."""

    source: str
    target: str
    predicted: str


@dataclass(frozen=True)
class Validation:
    """loss: mean over all validation words, without label smoothing. The rest: over the translated samples, 0 to 1."""

    loss: float
    bleu: float  # 4-gram, on words, placeholders and punctuation
    cer: float  # wrong characters per reference character
    wer: float  # wrong words per reference word
    exact: float  # share of translations equal to the reference
    samples: list[Sample]

    def metrics(self) -> dict[str, float]:
        """Returns the numbers by their names."""
        return {name: getattr(self, name) for name in ("loss", "bleu", "cer", "wer", "exact")}

    def __str__(self) -> str:
        return (
            f"validation loss {self.loss:.3f}, BLEU {100 * self.bleu:.1f}, CER {100 * self.cer:.0f} %, "
            f"WER {100 * self.wer:.0f} %, exact {100 * self.exact:.1f} %"
        )


def run_validation(
    loss_fn: TranslationLoss, val_dataloader: DataLoader, tokenizer_src: Tokenizer, tokenizer_tgt: Tokenizer,
    machine: Machine, seq: int, num_examples: int, beam: int = 1,
) -> Validation:  # fmt: skip
    """Returns how good `loss_fn.model` is; translates `num_examples` sentences, evenly spread over the data."""
    was_training = loss_fn.training
    loss_fn.eval()
    loss = mean_loss(loss_fn, val_dataloader, machine)
    pairs = val_dataloader.dataset.pairs
    chosen = pairs[:: max(1, len(pairs) // max(1, num_examples))][:num_examples]
    with machine.autocast():
        predicted = translate(
            loss_fn.model, [source for source, _ in chosen], tokenizer_src, tokenizer_tgt, seq=seq, beam=beam
        )
    samples = [Sample(source, target, text) for (source, target), text in zip(chosen, predicted, strict=True)]
    loss_fn.train(was_training)
    return Validation(loss, *scores(samples), samples)


@torch.inference_mode()
def mean_loss(loss_fn: TranslationLoss, batches: Iterable[Batch], machine: Machine) -> float:
    """Returns the mean cross-entropy per real word, without label smoothing."""
    total, count = torch.zeros((), device=machine.device), 0
    for batch in batches:
        count += batch.real.numel()
        with machine.autocast():
            total += loss_fn(*batch.to(machine.device), smoothing=0.0)
    return float(total) / count


def scores(samples: list[Sample]) -> tuple[float, float, float, float]:
    """Returns BLEU, CER, WER and the share of exact translations, all on words joined by single spaces."""
    if not samples:
        return 0.0, 1.0, 1.0, 0.0
    from torchmetrics.functional import text  # takes seconds to import

    predicted = [" ".join(words(sample.predicted)) for sample in samples]
    expected = [" ".join(words(sample.target)) for sample in samples]
    found: list[Tensor] = [
        text.bleu_score(predicted, [[line] for line in expected]),
        text.char_error_rate(predicted, expected),
        text.word_error_rate(predicted, expected),
    ]
    exact = sum(p == e for p, e in zip(predicted, expected, strict=True)) / len(samples)
    return (*(float(value) for value in found), exact)


def as_text(samples: list[Sample], count: int = 2) -> str:
    """Returns some samples as lines for a terminal."""
    width = int(os.environ.get("COLUMNS", 100)) - 12
    lines = []
    for sample in samples[:count]:
        rows = (("SOURCE", sample.source), ("TARGET", sample.target), ("PREDICTED", sample.predicted))
        lines += [f"{name:>10}: {text[:width]}" for name, text in rows]
    return "\n".join(lines)
