"""T5-style translation with encoder and decoder.

t5-small on books in English and French, or a small local T5 on English and Korean.

python -m services.hf.translate
python -m services.hf.translate --model made --data made --by loop
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from services.hf import collate, decoding, metrics, practice
from services.hf.made.texts import Row
from services.hf.practice import Request, TrainingResult
from vla_common import entrypoint
from vla_common.volume import Volume

MAX_TOKENS = 64  # per sentence
LANGUAGES = {"en": "English", "fr": "French", "ko": "Korean"}


@dataclass(frozen=True, kw_only=True)
class Translate(Request):
    """Fine-tunes an encoder-decoder to translate from English."""

    LAB = "translate"
    STEPS = (600, 2000)


def target_of(rows: Sequence[Row]) -> str:
    """Return the language of the rows that is not English."""
    return next(code for code in rows[0]["translation"] if code != "en")


def prompts(tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], target: str) -> list[list[int]]:
    """Return the tokens of sentences, each with T5's task prefix."""
    return practice.ids(
        tokenizer, [f"translate English to {LANGUAGES[target]}: {text}" for text in sentences], MAX_TOKENS
    )


def features(rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase) -> list[dict]:
    """Tokenize rows {translation: {en, …}} to {input_ids, labels}."""
    target = target_of(rows)
    read = prompts(tokenizer, [row["translation"]["en"] for row in rows], target)
    written = practice.ids(tokenizer, [row["translation"][target] for row in rows], MAX_TOKENS)
    return [{"input_ids": ids, "labels": labels} for ids, labels in zip(read, written, strict=True)]


def run(request: Translate, volume: Volume) -> TrainingResult:
    """Train, and measure on held-out sentences."""
    base, rows = practice.load_model_and_data(request, "t5", "pairs", volume)
    tokenizer = AutoTokenizer.from_pretrained(base.directory)
    model = AutoModelForSeq2SeqLM.from_pretrained(base.directory)
    collator = collate.PairCollator(tokenizer.pad_token_id, model.config.decoder_start_token_id)
    losses = practice.train(request, model, features(rows.train, tokenizer), collator, base.real, volume)
    target = target_of(rows.test)
    english, references = ([row["translation"][code] for row in rows.test] for code in ("en", target))
    predictions = translate(model, tokenizer, english, target)
    scores = {"exact": metrics.exact(predictions, references), "bleu": metrics.bleu(predictions, references)}
    return TrainingResult(model, tokenizer, losses, scores, english, predictions, references)


def translate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], target: str
) -> list[str]:
    """Translate sentences by greedy decoding."""
    read = prompts(tokenizer, sentences, target)
    return decoding.write(model, tokenizer, read, decoding.Sampling(), MAX_TOKENS)


def main() -> None:
    """Train a translator, print examples and save it."""
    request, volume = practice.read_flags(Translate, __doc__), Volume()
    result = run(request, volume)
    rows = zip(result.inputs[:3], result.predictions[:3], result.references[:3], strict=True)
    lines = [f"  {text} → {prediction}   (reference: {reference})" for text, prediction, reference in rows]
    measured = f"exact match {100 * result.scores['exact']:.1f} %, BLEU {100 * result.scores['bleu']:.1f}"
    practice.finish(request, result, volume, [*lines, measured])


if __name__ == "__main__":
    entrypoint.run(main)
