"""T5-type translation: an encoder reads, a decoder writes.

t5-small on books in English and French, or a small T5 made here on English and Korean.

python -m services.hf.translate
python -m services.hf.translate --model made --data made --by loop
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from services.hf import collate, decoding, metrics, practice
from services.hf.made.texts import Row
from services.hf.practice import Request, Result
from vla_common import endings
from vla_common.volume import Volume

LONGEST = 64  # tokens, on either side
LANGUAGES = {"en": "English", "fr": "French", "ko": "Korean"}


@dataclass(frozen=True, kw_only=True)
class Translate(Request):
    """Fine-tunes an encoder-decoder to translate from English."""

    LAB = "translate"
    STEPS = (600, 2000)


def target_of(rows: Sequence[Row]) -> str:
    """Return the language of these rows that is not English."""
    return next(code for code in rows[0]["translation"] if code != "en")


def prompts(tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], target: str) -> list[list[int]]:
    """Return the tokens of sentences, each behind the words by which T5 is told its task."""
    return practice.ids(tokenizer, [f"translate English to {LANGUAGES[target]}: {text}" for text in sentences], LONGEST)


def features(rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase) -> list[dict]:
    """Return rows {translation: {en, …}} as {input_ids, labels}."""
    target = target_of(rows)
    read = prompts(tokenizer, [row["translation"]["en"] for row in rows], target)
    written = practice.ids(tokenizer, [row["translation"][target] for row in rows], LONGEST)
    return [{"input_ids": ids, "labels": labels} for ids, labels in zip(read, written, strict=True)]


def run(request: Translate, volume: Volume) -> Result:
    """Train, and translate held-out sentences."""
    base, rows = practice.begin(request, "t5", "pairs", volume)
    tokenizer = AutoTokenizer.from_pretrained(base.directory)
    model = AutoModelForSeq2SeqLM.from_pretrained(base.directory)
    joined = collate.Pairs(tokenizer.pad_token_id, model.config.decoder_start_token_id)
    losses = practice.train(request, model, features(rows.train, tokenizer), joined, base.real, volume)
    target = target_of(rows.test)
    english, meant = ([row["translation"][code] for row in rows.test] for code in ("en", target))
    said = translate(model, tokenizer, english, target)
    scores = {"exact": metrics.exact(said, meant), "bleu": metrics.bleu(said, meant)}
    return Result(model, tokenizer, losses, scores, english, said, meant)


def translate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], target: str
) -> list[str]:
    """Return the likeliest translation of each sentence, word by word (greedy)."""
    read = prompts(tokenizer, sentences, target)
    return decoding.write(model, tokenizer, read, decoding.Sampling(), LONGEST)


def main() -> None:
    """Train a translator by the command line's flags, show some of its work and save it."""
    request, volume = practice.read_flags(Translate, __doc__), Volume()
    result = run(request, volume)
    rows = list(zip(result.asked, result.said, result.meant, strict=True))[:3]
    lines = [f"  {asked} → {said}   (meant: {meant})" for asked, said, meant in rows]
    measured = f"as meant {100 * result.scores['exact']:.1f} %, BLEU {100 * result.scores['bleu']:.1f}"
    practice.finish(request, result, volume, [*lines, measured])


if __name__ == "__main__":
    endings.run(main)
