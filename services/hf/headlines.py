"""GPT-type generation: a report goes on with its headline. KoGPT2 on Korean news, or a small GPT-2 made here.

python -m services.hf.headlines                             greedy headlines of reports that it has not seen
python -m services.hf.headlines --temperature 1 --top-p 0.9
python -m services.hf.headlines --lora 8                    train 8-wide additions to the weights, and nothing else
python -m services.hf.headlines --push OWNER/NAME           upload what was trained; needs HF_TOKEN
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import peft
import torch
import tyro
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from services.hf import collate, decoding, metrics, practice, sources
from services.hf.collate import IGNORED
from services.hf.made.texts import Row
from services.hf.practice import Request
from vla_common import endings
from vla_common.volume import Volume

CUE = "\n제목:"  # between a report and its headline, in any tokenizer's own letters
REPORT, HEADLINE = 90, 30  # tokens, at most
SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Headlines(Request):
    """Fine-tunes a decoder to write a report's headline."""

    LAB = "headlines"
    STEPS = (300, 2000)

    temperature: float = 0.0  # of sampling; 0: the likeliest word, always
    top_k: int = 0  # draw from the k likeliest words; 0: from all
    top_p: float = 1.0  # draw from the fewest words that have this probability together
    lora: int = 0  # rank of LoRA's additions; 0: all weights are trained

    @property
    def sampling(self) -> decoding.Sampling:
        """How words are chosen."""
        return decoding.Sampling(self.temperature, self.top_k, self.top_p)


@dataclass(frozen=True)
class Result:
    """A trained writer, what it learned by, and what it makes of reports it has not seen."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    losses: list[float]
    said: list[str]
    meant: list[str]
    scores: dict[str, float] = field(default_factory=dict)


def prompt(report: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns a report's tokens, cut to length, and the cue behind them."""
    report_ids, cue = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (report, CUE))
    return report_ids[: REPORT - len(cue)] + cue


def features(rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase) -> list[dict]:
    """Returns rows {document, title} as {input_ids, labels}: the loss counts headline and end, not the report."""
    found = []
    for row in rows:
        before = prompt(row["document"], tokenizer)
        after = tokenizer(" " + row["title"], add_special_tokens=False)["input_ids"][: HEADLINE - 1]
        after = [*after, tokenizer.eos_token_id]
        found.append({"input_ids": before + after, "labels": [IGNORED] * len(before) + after})
    return found


def with_lora(model: PreTrainedModel, rank: int) -> peft.PeftModel:
    """Returns the model with W + 2 B·A in place of each attention's W, of which only A and B [rank] are trained."""
    found = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=2 * rank,
        target_modules=["c_attn"],
        fan_in_fan_out=True,
        lora_dropout=0.0,
    )
    return peft.get_peft_model(model, found)


def trained_share(model: torch.nn.Module) -> tuple[int, int]:
    """Returns how many numbers are trained, and how many there are."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(size for size, counts in sizes if counts), sum(size for size, _ in sizes)


def load_base(found: sources.Found) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Returns a model and its tokenizer; KoGPT2's names its special tokens nowhere, so they are said here."""
    names = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"} if found.real else {}
    tokenizer = AutoTokenizer.from_pretrained(found.folder, **names)
    model = AutoModelForCausalLM.from_pretrained(found.folder)
    for where in (model.config, model.generation_config):
        where.pad_token_id, where.eos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id
    return model, tokenizer


def run(request: Headlines, volume: Volume) -> Result:
    """Trains, and writes headlines of reports that were kept; prints whose model and data these are."""
    sources.require_push(request.push)
    sampling = request.sampling
    found = sources.model("gpt", request.model, volume, request.pretrained)
    rows = sources.data("news", request.data, request.examples, volume, request.held)
    print(found.said, rows.said, sep="\n", flush=True)
    model, tokenizer = load_base(found)
    set_seed(request.seed)  # of LoRA's weights
    if request.lora:
        model = with_lora(model, request.lora)
        adapter = model.peft_config["default"]
        print("LoRA: {:,} of {:,} numbers are trained".format(*trained_share(model)), end="; ")
        print(f"rank {adapter.r}, alpha {adapter.lora_alpha}: B·A is multiplied by {adapter.lora_alpha / adapter.r:g}")
    joined = collate.Causal(tokenizer.pad_token_id)
    losses = practice.train(request, model, features(rows.train, tokenizer), joined, found.real, volume)
    set_seed(request.seed)  # of sampling
    said = write(model, tokenizer, [row["document"] for row in rows.test], sampling)
    meant = [row["title"] for row in rows.test]
    rouge = sum(map(metrics.rouge_l, said, meant)) / len(meant)
    return Result(model, tokenizer, losses, said, meant, {"exact": metrics.exact(said, meant), "rouge_l": rouge})


def write(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, reports: Sequence[str], sampling: decoding.Sampling
) -> list[str]:
    """Returns a headline for each report. The reports of a batch are filled up on the left: all go on at the right."""
    said = []
    for group in practice.batches(reports, 50):
        rows = [{"input_ids": prompt(report, tokenizer)} for report in group]
        batch = practice.on_device(model, collate.inputs(rows, tokenizer.pad_token_id, left=True))
        tokens = decoding.decode(model, batch, sampling, HEADLINE)
        said += [text.strip() for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]
    return said


def main() -> None:
    """Trains a writer of headlines by the command line's flags, shows some and saves it."""
    practice.quiet()
    request, volume = tyro.cli(Headlines, prog="python -m services.hf.headlines", description=__doc__), Volume()
    result = run(request, volume)
    print(f"loss {result.losses[0]:.3f} → {result.losses[-1]:.3f} in {len(result.losses)} steps, by {request.by}")
    for said, meant in list(zip(result.said, result.meant, strict=True))[:SHOWN]:
        print(f"  {said}   (its own: {meant})")
    print(f"as its own {100 * result.scores['exact']:.1f} %, ROUGE-L {result.scores['rouge_l']:.3f}")
    practice.save(request, volume, [result.model, result.tokenizer])


if __name__ == "__main__":
    endings.run(main)
