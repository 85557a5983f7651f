"""BERT-type classification: is a review one that likes its film? KcBERT on NSMC, or a small BERT made here.

python -m services.hf.classify                     by transformers' Trainer
python -m services.hf.classify --by loop           by a bare loop with accelerate: the same losses
python -m services.hf.classify --model made --data made
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import tyro
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from services.hf import collate, practice, sources
from services.hf.made.texts import Row
from services.hf.metrics import Sentiment
from services.hf.practice import Request
from vla_common import endings
from vla_common.volume import Volume

LONGEST = 64  # tokens of a review: NSMC's have 140 letters at most
NAMES = {0: "disliked", 1: "liked"}


@dataclass(frozen=True, kw_only=True)
class Classify(Request):
    """Fine-tunes an encoder with a new head of two classes."""

    LAB = "classify"


@dataclass(frozen=True)
class Result:
    """A trained classifier, what it learned by, and how good it is."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    losses: list[float]
    scores: dict[str, float]
    said: tuple[str, ...] = field(default=())


def features(rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase) -> list[dict]:
    """Returns rows {document, label} as {input_ids, label}; those without text, which NSMC has, are left out."""
    kept = [row for row in rows if row["document"]]
    found = practice.ids(tokenizer, [row["document"] for row in kept], LONGEST)
    return [{"input_ids": one, "label": int(row["label"])} for one, row in zip(found, kept, strict=True)]


def run(request: Classify, volume: Volume) -> Result:
    """Trains and measures; prints whose model and data these are."""
    sources.require_push(request.push)
    found = sources.model("bert", request.model, volume, request.pretrained)
    rows = sources.data("reviews", request.data, request.examples, volume, request.held)
    print(found.said, rows.said, sep="\n", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(found.folder)
    set_seed(request.seed)  # of the new head's weights
    model = AutoModelForSequenceClassification.from_pretrained(found.folder, num_labels=2, id2label=NAMES)
    joined = collate.Classification(tokenizer.pad_token_id)
    losses = practice.train(request, model, features(rows.train, tokenizer), joined, found.real, volume)
    return Result(model, tokenizer, losses, score(model, tokenizer, rows.test), (found.said, rows.said))


@torch.no_grad()
def probabilities(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, said: Sequence[str]) -> torch.Tensor:
    """Returns the classes' probabilities [B, 2] of texts."""
    rows = [{"input_ids": one} for one in practice.ids(tokenizer, said, LONGEST)]
    return model(**practice.on_device(model, collate.inputs(rows, tokenizer.pad_token_id))).logits.softmax(-1).cpu()


def score(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row]) -> dict[str, float]:
    """Returns accuracy and F1 on rows {document, label}."""
    metric = Sentiment(keep_in_memory=True)
    for batch in practice.batches([row for row in rows if row["document"]], 64):
        classes = probabilities(model, tokenizer, [row["document"] for row in batch]).argmax(-1)
        metric.add_batch(predictions=classes.tolist(), references=[int(row["label"]) for row in batch])
    return metric.compute()


def load(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Returns what `save` wrote."""
    return AutoModelForSequenceClassification.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def main() -> None:
    """Trains a classifier by the command line's flags, measures it and saves it."""
    practice.quiet()
    request, volume = tyro.cli(Classify, prog="python -m services.hf.classify", description=__doc__), Volume()
    result = run(request, volume)
    print(f"loss {result.losses[0]:.3f} → {result.losses[-1]:.3f} in {len(result.losses)} steps, by {request.by}")
    print(f"accuracy {100 * result.scores['accuracy']:.1f} %, F1 {result.scores['f1']:.3f} (scikit-learn's, offline)")
    practice.save(request, volume, [result.model, result.tokenizer])


if __name__ == "__main__":
    endings.run(main)
