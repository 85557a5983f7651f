"""BERT-style classification of movie reviews: KcBERT on NSMC, or a small BERT trained locally.

python -m services.hf.classify                     with transformers' Trainer
python -m services.hf.classify --by loop           with a plain accelerate loop: the same losses
python -m services.hf.classify --model made --data made
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification as AutoModel
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from services.hf import collate, practice
from services.hf.made.texts import Row
from services.hf.metrics import Sentiment
from services.hf.practice import Request, TrainingResult
from vla_common import entrypoint
from vla_common.volume import Volume

MAX_TOKENS = 64  # per review; NSMC reviews have at most 140 characters
NAMES = {0: "disliked", 1: "liked"}


@dataclass(frozen=True, kw_only=True)
class Classify(Request):
    """Fine-tunes an encoder with a new head of two classes."""

    LAB = "classify"


def features(rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase) -> list[dict]:
    """Tokenize rows {document, label} to {input_ids, label}. Skips rows without text, which NSMC has."""
    rows = [row for row in rows if row["document"]]
    tokens = practice.ids(tokenizer, [row["document"] for row in rows], MAX_TOKENS)
    return [{"input_ids": ids, "label": int(row["label"])} for ids, row in zip(tokens, rows, strict=True)]


def run(request: Classify, volume: Volume) -> TrainingResult:
    """Train and measure."""
    base, rows = practice.load_model_and_data(request, "bert", "reviews", volume)
    tokenizer = AutoTokenizer.from_pretrained(base.directory)
    set_seed(request.seed)  # initializes the new head
    model = AutoModel.from_pretrained(base.directory, num_labels=2, id2label=NAMES)
    collator = collate.Classification(tokenizer.pad_token_id)
    losses = practice.train(request, model, features(rows.train, tokenizer), collator, base.real, volume)
    return TrainingResult(model, tokenizer, losses, score(model, tokenizer, rows.test))


@torch.no_grad()
def probabilities(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> torch.Tensor:
    """Return class probabilities [B, 2] of texts."""
    rows = [{"input_ids": ids} for ids in practice.ids(tokenizer, texts, MAX_TOKENS)]
    return model(**practice.on_device(model, collate.inputs(rows, tokenizer.pad_token_id))).logits.softmax(-1).cpu()


def score(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row]) -> dict[str, float]:
    """Return accuracy and F1 on rows {document, label}."""
    metric = Sentiment(keep_in_memory=True)
    for batch in practice.batches([row for row in rows if row["document"]], 64):
        classes = probabilities(model, tokenizer, [row["document"] for row in batch]).argmax(-1)
        metric.add_batch(predictions=classes.tolist(), references=[int(row["label"]) for row in batch])
    return metric.compute()


def load(directory: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a saved classifier and its tokenizer."""
    return AutoModel.from_pretrained(directory).eval(), AutoTokenizer.from_pretrained(directory)


def main() -> None:
    """Train a classifier by the command line's flags, measure it and save it."""
    request, volume = practice.read_flags(Classify, __doc__), Volume()
    result = run(request, volume)
    accuracy, f1 = 100 * result.scores["accuracy"], result.scores["f1"]
    practice.finish(request, result, volume, [f"accuracy {accuracy:.1f} %, F1 {f1:.3f} (scikit-learn's, offline)"])


if __name__ == "__main__":
    entrypoint.run(main)
