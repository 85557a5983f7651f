"""The two self-supervised objectives: masked tokens (BERT) and the next token (GPT).

python -m services.hf.objectives masked       fill in masked tokens, before and after training
python -m services.hf.objectives causal       predict the next token
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import tyro
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

from services.hf import collate, practice
from services.hf.practice import Request, TrainingResult
from vla_common import entrypoint
from vla_common.options import option
from vla_common.volume import Volume

MAX_TOKENS = 64
KINDS = {"masked": ("bert", AutoModelForMaskedLM), "causal": ("gpt", AutoModelForCausalLM)}


@dataclass(frozen=True, kw_only=True)
class Objectives(Request):
    """Trains an encoder on masked tokens or a decoder on the next token; measures both on the same reviews."""

    LAB = "objectives"

    objective: Annotated[Literal["masked", "causal"], tyro.conf.Positional]
    pretrained: int | None = option(0, "pre-training steps of a locally made model", default_help="")


@torch.no_grad()
def loss_on(model: PreTrainedModel, rows: Sequence[dict], collator: collate.Masked | collate.Causal) -> float:
    """Return the mean loss over batches of rows."""
    losses = [model(**practice.on_device(model, collator(batch))).loss.item() for batch in practice.batches(rows, 64)]
    return sum(losses) / len(losses)


def run(request: Objectives, volume: Volume) -> TrainingResult:
    """Train; measure the loss on held-out reviews before and after, with the same masks."""
    kind, auto = KINDS[request.objective]
    base, rows = practice.load_model_and_data(request, kind, "reviews", volume)
    tokenizer = AutoTokenizer.from_pretrained(base.directory)
    model = auto.from_pretrained(base.directory).eval()

    def features(rows: Sequence[dict]) -> list[dict]:
        texts = [row["document"] for row in rows if row["document"]]
        return [{"input_ids": ids} for ids in practice.ids(tokenizer, texts, MAX_TOKENS)]

    def joined(seed: int) -> collate.Masked | collate.Causal:
        masked = request.objective == "masked"
        return collate.Masked.of(tokenizer, seed) if masked else collate.Causal(tokenizer.pad_token_id)

    test = features(rows.test)
    before = loss_on(model, test, joined(seed=1))
    losses = practice.train(request, model, features(rows.train), joined(request.seed), base.real, volume)
    return TrainingResult(model, tokenizer, losses, {"before": before, "after": loss_on(model, test, joined(seed=1))})


@torch.no_grad()
def likeliest(result: TrainingResult, text: str, count: int = 5) -> list[tuple[str, float]]:
    """Return the most likely tokens and their probabilities: at the first [MASK] of a text, or after it."""
    ids = torch.tensor([result.tokenizer(text)["input_ids"]], device=result.model.device)
    logits = result.model(input_ids=ids).logits[0]
    mask = result.tokenizer.mask_token_id
    at = ids[0].tolist().index(mask) if mask is not None and mask in ids[0] else -1
    top = logits[at].softmax(-1).topk(count)
    tokens = [result.tokenizer.decode([number]).strip() for number in top.indices.tolist()]
    return list(zip(tokens, top.values.tolist(), strict=True))


def main() -> None:
    """Train, and print the model's predictions for a sentence."""
    request, volume = practice.read_flags(Objectives, __doc__), Volume()
    result = run(request, volume)
    before, after = result.scores["before"], result.scores["after"]
    text = f"결말이 정말 {result.tokenizer.mask_token or ''}".strip()
    expected = ", ".join(f"{word} {share:.2f}" for word, share in likeliest(result, text))
    perplexity = f"perplexity {math.exp(before):.1f} → {math.exp(after):.1f}"
    lines = [f"loss on held-out reviews {before:.3f} → {after:.3f}; {perplexity}", f"{text}: {expected}"]
    practice.finish(request, result, volume, lines)


if __name__ == "__main__":
    entrypoint.run(main)
