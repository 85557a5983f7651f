"""T5-type translation: an encoder reads, a decoder writes.

t5-small on books in English and French, or a small T5 made here on English and Korean.

python -m services.hf.translate
python -m services.hf.translate --model made --data made --by loop
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tyro
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from services.hf import collate, decoding, metrics, practice, sources
from services.hf.made.texts import Row
from services.hf.practice import Request
from vla_common import endings
from vla_common.volume import Volume

LONGEST = 64  # tokens, on either side
LANGUAGES = {"en": "English", "fr": "French", "ko": "Korean"}
SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Translate(Request):
    """Fine-tunes an encoder-decoder to translate from English."""

    LAB = "translate"
    STEPS = (600, 2000)


@dataclass(frozen=True)
class Result:
    """A trained translator, what it learned by, and what it makes of sentences it has not seen."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    losses: list[float]
    asked: list[str]
    said: list[str]
    meant: list[str]
    scores: dict[str, float] = field(default_factory=dict)


def target_of(rows: Sequence[Row]) -> str:
    """Returns the language of these rows that is not English."""
    return next(code for code in rows[0]["translation"] if code != "en")


def ask(sentence: str, target: str) -> str:
    """Returns a sentence behind the words by which T5 is told its task."""
    return f"translate English to {LANGUAGES[target]}: {sentence}"


def features(rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase) -> list[dict]:
    """Returns rows {translation: {en, …}} as {input_ids, labels}."""
    target = target_of(rows)
    asked = practice.ids(tokenizer, [ask(row["translation"]["en"], target) for row in rows], LONGEST)
    meant = practice.ids(tokenizer, [row["translation"][target] for row in rows], LONGEST)
    return [{"input_ids": one, "labels": other} for one, other in zip(asked, meant, strict=True)]


def run(request: Translate, volume: Volume) -> Result:
    """Trains, and translates sentences that were kept; prints whose model and data these are."""
    sources.require_push(request.push)
    found = sources.model("t5", request.model, volume, request.pretrained)
    rows = sources.data("pairs", request.data, request.examples, volume, request.held)
    print(found.said, rows.said, sep="\n", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(found.folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(found.folder)
    joined = collate.Pairs(tokenizer.pad_token_id, model.config.decoder_start_token_id)
    losses = practice.train(request, model, features(rows.train, tokenizer), joined, found.real, volume)
    target = target_of(rows.test)
    english, meant = ([row["translation"][code] for row in rows.test] for code in ("en", target))
    said = translate(model, tokenizer, english, target)
    scores = {"exact": metrics.exact(said, meant), "bleu": metrics.bleu(said, meant)}
    return Result(model, tokenizer, losses, english, said, meant, scores)


def translate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], target: str
) -> list[str]:
    """Returns the likeliest translation of each sentence, word by word (greedy)."""
    said = []
    for group in practice.batches(sentences, 50):
        rows = [{"input_ids": one} for one in practice.ids(tokenizer, [ask(text, target) for text in group], LONGEST)]
        batch = practice.on_device(model, collate.inputs(rows, tokenizer.pad_token_id))
        tokens = decoding.decode(model, batch, decoding.Sampling(), LONGEST)
        said += [text.strip() for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]
    return said


def main() -> None:
    """Trains a translator by the command line's flags, shows some of its work and saves it."""
    practice.quiet()
    request, volume = tyro.cli(Translate, prog="python -m services.hf.translate", description=__doc__), Volume()
    result = run(request, volume)
    print(f"loss {result.losses[0]:.3f} → {result.losses[-1]:.3f} in {len(result.losses)} steps, by {request.by}")
    for asked, said, meant in list(zip(result.asked, result.said, result.meant, strict=True))[:SHOWN]:
        print(f"  {asked} → {said}   (meant: {meant})")
    print(f"as meant {100 * result.scores['exact']:.1f} %, BLEU {100 * result.scores['bleu']:.1f}")
    practice.save(request, volume, [result.model, result.tokenizer])


if __name__ == "__main__":
    endings.run(main)
