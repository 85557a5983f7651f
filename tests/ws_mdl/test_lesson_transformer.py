"""The plain Transformer: the fast one's numbers from the fast one's weights, and every shape as its line says."""

import random
from pathlib import Path

import pytest
import torch

from lessons import transformer as lesson
from services.ws_mdl.transformer import dataset, decode
from services.ws_mdl.transformer.config import get_config
from services.ws_mdl.transformer.dataset import Example, Special
from services.ws_mdl.transformer.model import TranslationLoss, build_transformer, sinusoids
from services.ws_mdl.transformer.train import learning_rate
from tests.lesson_shapes import Shapes

SPECIAL = Special(lesson.PAD, lesson.SOS, lesson.EOS)
SIZES = {"d_model": 24, "N": 2, "h": 4, "d_ff": 40, "dropout": 0.0}
VOCABULARY, SEQ = 29, 14


def both(scale: float = 1.0):
    """Return the lesson's model and the fast one, with the same weights, larger ones to tell sentences apart."""
    torch.manual_seed(0)
    fast = build_transformer(VOCABULARY, VOCABULARY, SEQ, SEQ, **SIZES)
    with torch.no_grad():
        for parameter in fast.parameters():
            parameter *= scale
            if parameter.dim() == 1:
                parameter += 0.2 * torch.randn(parameter.shape)
    plain = lesson.Transformer(VOCABULARY, VOCABULARY, SEQ, **SIZES)
    plain.load_state_dict(fast.state_dict())
    return plain, fast


def some(count: int = 5, seed: int = 0) -> tuple[list[list[int]], list[list[int]]]:
    return lesson.reversed_letters(random.Random(seed), count)


def batch_of(sources, targets) -> dataset.Batch:
    return dataset.make_batch([Example(s, t) for s, t in zip(sources, targets, strict=True)], SPECIAL, SPECIAL)


def test_it_is_short_enough_to_be_read():
    assert len(Path(lesson.__file__).read_text().splitlines()) <= 250


def test_the_same_weights_give_the_same_scores():
    plain, fast = both()
    batch = batch_of(*some())
    src, tgt = batch.encoder_input, batch.decoder_input
    ours = plain(src, tgt, lesson.padding_mask(src), lesson.causal_mask(tgt.shape[1]))
    theirs = fast(src, tgt, batch.encoder_mask, batch.decoder_mask)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_masks_positions_and_teacher_forcing_are_the_fast_ones():
    sources, targets = some()
    batch = batch_of(sources, targets)
    given, label = lesson.teacher_forcing(targets)
    assert torch.equal(given, batch.decoder_input) and torch.equal(label, batch.label)
    assert torch.equal(lesson.padding_mask(batch.encoder_input), batch.encoder_mask)
    assert torch.equal(lesson.causal_mask(given.shape[1]), batch.decoder_mask)
    torch.testing.assert_close(lesson.positions(350, 512)[0], sinusoids(350, 512), atol=1e-4, rtol=0)


@pytest.mark.parametrize("step", [1, 7, 400, 4000, 100_000])
def test_the_rate_is_the_fast_ones(step):
    config = get_config("base")
    assert lesson.learning_rate(step, config.d_model, config.warmup_steps) == pytest.approx(learning_rate(config, step))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_fast_ones_and_padding_costs_nothing(smoothing):
    plain, fast = both()
    batch = batch_of(*some())
    scores = plain(batch.encoder_input, batch.decoder_input, batch.encoder_mask, batch.decoder_mask)
    ours = lesson.smoothed_loss(scores, batch.label, smoothing)
    theirs = TranslationLoss(fast, smoothing)(*batch) / batch.real.numel()
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_some_steps_of_training_lead_to_the_same_weights():
    plain, fast = both()
    batches = [some(seed=seed) for seed in range(4)]
    lesson.train_model(plain, batches, SIZES["d_model"])
    loss_fn, config = TranslationLoss(fast), get_config("tiny", d_model=SIZES["d_model"])
    optimizer = torch.optim.Adam(fast.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)
    for step, pair in enumerate(batches, start=1):
        batch = batch_of(*pair)
        (loss_fn(*batch) / batch.real.numel()).backward()
        optimizer.param_groups[0]["lr"] = learning_rate(config, step)
        optimizer.step()
        optimizer.zero_grad()
    for name, weight in plain.state_dict().items():
        torch.testing.assert_close(weight, fast.state_dict()[name], atol=2e-5, rtol=0, msg=name)


def test_greedy_translations_are_the_fast_ones():
    plain, fast = both(scale=2.0)
    sources, _ = some(8)
    source = dataset.pad_rows([[lesson.SOS, *ids, lesson.EOS] for ids in sources], lesson.PAD)
    theirs = decode.greedy_decode(
        fast.eval(), source, dataset.padding_mask(source, lesson.PAD), SPECIAL, 10, use_cache=False
    )
    ours = [lesson.greedy_decode(plain.eval(), ids, 10) for ids in sources]
    assert len({tuple(ids) for ids in theirs}) > 1, "sentences that are told apart"
    assert ours == theirs


def test_every_shape_at_the_end_of_a_line_exists():
    plain, _ = both()
    sizes = {name: SIZES[name] for name in ("d_model", "d_ff", "h")} | {"d_k": 6, "vocabulary": VOCABULARY}
    shapes = Shapes(lesson, sizes)

    def lesson_is_run() -> None:
        lesson.positions(SEQ, SIZES["d_model"])
        lesson.train_model(plain, [some(3)], SIZES["d_model"])
        lesson.greedy_decode(plain, [3, 4, 5], 6)

    shapes.run(lesson_is_run)
    assert not shapes.wrong
    assert shapes.seen == set(shapes.lines) and len(shapes.lines) > 25
