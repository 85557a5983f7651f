"""GPT-style generation of news headlines: KoGPT2 on Korean news, or a small GPT-2 trained locally.

python -m services.hf.headlines                             greedy headlines of held-out reports
python -m services.hf.headlines --temperature 1 --top-p 0.9
python -m services.hf.headlines --lora 8                    train LoRA matrices of rank 8 only
python -m services.hf.headlines --push OWNER/NAME           upload the trained model; needs HF_TOKEN
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import peft
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from services.hf import collate, decoding, metrics, practice, sources
from services.hf.collate import IGNORED
from services.hf.made.texts import Row
from services.hf.practice import Request, TrainingResult
from vla_common import entrypoint
from vla_common.options import option
from vla_common.volume import Volume

CUE = "\n제목:"  # between report and headline
REPORT, HEADLINE = 90, 30  # maximum number of tokens


@dataclass(frozen=True, kw_only=True)
class Headlines(Request):
    """Fine-tunes a decoder to write a report's headline."""

    LAB = "headlines"
    STEPS = (300, 2000)

    temperature: float = option(0.0, "of sampling; 0: greedy", "[0, inf)")
    top_k: int = option(0, "sample from the k most likely tokens; 0: from all", "[0, inf)")
    top_p: float = option(1.0, "sample from the smallest set of tokens with this probability", "(0, 1]")
    lora: int = option(0, "rank of the LoRA matrices; 0: train all weights", "[0, inf)")


def prompt(report: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the truncated tokens of a report, followed by the cue."""
    tokens, cue = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (report, CUE))
    return tokens[: REPORT - len(cue)] + cue


def features(rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase) -> list[dict]:
    """Tokenize rows {document, title} to {input_ids, labels}; the labels ignore the report."""
    examples = []
    for row in rows:
        before = prompt(row["document"], tokenizer)
        after = tokenizer(" " + row["title"], add_special_tokens=False)["input_ids"][: HEADLINE - 1]
        after = [*after, tokenizer.eos_token_id]
        examples.append({"input_ids": before + after, "labels": [IGNORED] * len(before) + after})
    return examples


def with_lora(model: PreTrainedModel, rank: int) -> peft.PeftModel:
    """Return the model with W + 2 B·A instead of each attention's W; only A and B of that rank are trained."""
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank, target_modules=["c_attn"], fan_in_fan_out=True,
        lora_dropout=0.0,
    )  # fmt: skip
    return peft.get_peft_model(model, config)


def trained_share(model: torch.nn.Module) -> tuple[int, int]:
    """Return the number of trained parameters and of all parameters."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(size for size, counts in sizes if counts), sum(size for size, _ in sizes)


def load_base(base: sources.LocalModel) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load model and tokenizer, and set the special tokens, which KoGPT2's files do not name."""
    names = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"} if base.real else {}
    tokenizer = AutoTokenizer.from_pretrained(base.directory, **names)
    model = AutoModelForCausalLM.from_pretrained(base.directory)
    for config in (model.config, model.generation_config):
        config.pad_token_id, config.eos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id
    return model, tokenizer


def run(request: Headlines, volume: Volume) -> TrainingResult:
    """Train, and write headlines of held-out reports."""
    base, rows = practice.load_model_and_data(request, "gpt", "news", volume)
    model, tokenizer = load_base(base)
    set_seed(request.seed)  # initializes LoRA's weights
    if request.lora:
        model = with_lora(model, request.lora)
        adapter = model.peft_config["default"]
        print("LoRA: {:,} of {:,} parameters are trained".format(*trained_share(model)), end="; ")
        print(f"rank {adapter.r}, alpha {adapter.lora_alpha}: B·A is multiplied by {adapter.lora_alpha / adapter.r:g}")
    collator = collate.Causal(tokenizer.pad_token_id)
    losses = practice.train(request, model, features(rows.train, tokenizer), collator, base.real, volume)
    set_seed(request.seed)  # for sampling
    reports, references = ([row[column] for row in rows.test] for column in ("document", "title"))
    sampling = decoding.Sampling(request.temperature, request.top_k, request.top_p)
    predictions = write(model, tokenizer, reports, sampling)
    rouge = sum(map(metrics.rouge_l, predictions, references)) / len(references)
    scores = {"exact": metrics.exact(predictions, references), "rouge_l": rouge}
    return TrainingResult(model, tokenizer, losses, scores, reports, predictions, references)


def write(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, reports: Sequence[str], sampling: decoding.Sampling
) -> list[str]:
    """Return a headline for each report."""
    return decoding.write(model, tokenizer, [prompt(report, tokenizer) for report in reports], sampling, HEADLINE)


def main() -> None:
    """Train a headline model, print examples and save it."""
    request, volume = practice.read_flags(Headlines, __doc__), Volume()
    result = run(request, volume)
    texts = result.predictions[:3], result.references[:3]
    lines = [f"  {text}   (reference: {reference})" for text, reference in zip(*texts, strict=True)]
    measured = f"exact match {100 * result.scores['exact']:.1f} %, ROUGE-L {result.scores['rouge_l']:.3f}"
    practice.finish(request, result, volume, [*lines, measured])


if __name__ == "__main__":
    entrypoint.run(main)
