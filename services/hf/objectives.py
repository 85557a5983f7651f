"""The two ways to learn from text alone: words that are hidden (BERT), and the next word (GPT).

python -m services.hf.objectives masked       what fills the holes of a sentence, before and after some training
python -m services.hf.objectives causal       what comes next
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import tyro
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from services.hf import collate, practice, sources
from services.hf.practice import Request
from vla_common import endings
from vla_common.volume import Volume

LONGEST = 64
KINDS = {"masked": ("bert", AutoModelForMaskedLM), "causal": ("gpt", AutoModelForCausalLM)}


@dataclass(frozen=True, kw_only=True)
class Objectives(Request):
    """Trains an encoder on hidden words, or a decoder on the next word, and measures both on the same reviews."""

    LAB = "objectives"

    objective: Annotated[Literal["masked", "causal"], tyro.conf.Positional]
    pretrained: int | None = 0  # steps that a model made here has behind it


@dataclass(frozen=True)
class Result:
    """A trained model, what it learned by, and its loss on kept reviews before and after."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    losses: list[float]
    before: float
    after: float


def joined_for(objective: str, tokenizer: PreTrainedTokenizerBase, seed: int) -> collate.Masked | collate.Causal:
    """Returns the collate function of an objective; the masked one draws its holes from `seed`."""
    if objective == "masked":
        return collate.Masked.of(tokenizer, seed)
    return collate.Causal(tokenizer.pad_token_id)


@torch.no_grad()
def loss_on(model: PreTrainedModel, rows: Sequence[dict], joined: collate.Masked | collate.Causal) -> float:
    """Returns the mean loss of batches of rows."""
    found = [model(**practice.on_device(model, joined(batch))).loss.item() for batch in practice.batches(rows, 64)]
    return sum(found) / len(found)


def run(request: Objectives, volume: Volume) -> Result:
    """Trains; measures before and after with the same holes."""
    sources.require_push(request.push)
    kind, auto = KINDS[request.objective]
    found = sources.model(kind, request.model, volume, request.pretrained)
    rows = sources.data("reviews", request.data, request.examples, volume, request.held)
    print(found.said, rows.said, sep="\n", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(found.folder)
    model = auto.from_pretrained(found.folder).eval()
    train, test = (_features(side, tokenizer) for side in (rows.train, rows.test))
    before = loss_on(model, test, joined_for(request.objective, tokenizer, seed=1))
    losses = practice.train(
        request, model, train, joined_for(request.objective, tokenizer, request.seed), found.real, volume
    )
    after = loss_on(model, test, joined_for(request.objective, tokenizer, seed=1))
    return Result(model, tokenizer, losses, before, after)


def _features(rows: Sequence[dict], tokenizer: PreTrainedTokenizerBase) -> list[dict]:
    said = [row["document"] for row in rows if row["document"]]
    return [{"input_ids": one} for one in practice.ids(tokenizer, said, LONGEST)]


@torch.no_grad()
def likeliest(result: Result, text: str, most: int = 5) -> list[tuple[str, float]]:
    """Returns the likeliest words, with their probabilities: for the first [MASK] of a text, or behind it."""
    ids = torch.tensor([result.tokenizer(text)["input_ids"]], device=result.model.device)
    logits = result.model(input_ids=ids).logits[0]
    mask = result.tokenizer.mask_token_id
    at = ids[0].tolist().index(mask) if mask is not None and mask in ids[0] else -1
    found = logits[at].softmax(-1).topk(most)
    words = [result.tokenizer.decode([number]).strip() for number in found.indices.tolist()]
    return list(zip(words, found.values.tolist(), strict=True))


def main() -> None:
    """Trains by the command line's flags, and shows what the model expects of a sentence."""
    practice.quiet()
    request, volume = tyro.cli(Objectives, prog="python -m services.hf.objectives", description=__doc__), Volume()
    result = run(request, volume)
    print(f"loss on kept reviews {result.before:.3f} → {result.after:.3f}", end="; ")
    print(f"perplexity {math.exp(result.before):.1f} → {math.exp(result.after):.1f}")
    hole = result.tokenizer.mask_token or ""
    text = f"결말이 정말 {hole}" if hole else "결말이 정말"
    print(f"{text}: " + ", ".join(f"{word} {share:.2f}" for word, share in likeliest(result, text)))
    practice.save(request, volume, [result.model, result.tokenizer])


if __name__ == "__main__":
    endings.run(main)
