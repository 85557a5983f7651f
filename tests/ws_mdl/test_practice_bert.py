"""The small BERT: it sees both sides, masks as the paper says, and follows torch's layers with the same weights."""

import math
from collections import Counter

import pytest
import torch

from services.ws_mdl.practice import bert
from services.ws_mdl.practice.bert import BERT, IGNORED, Config, Examples, load, loss_of, mask_tokens
from tests.ws_mdl.practice import SMALL, corpus, stirred, torch_encoder

WORDS, SEQ, PAD = 30, 12, 1


@pytest.fixture
def pairs(tmp_path, volume):
    settings = {**SMALL, "seq": 64, "held_fraction": 0.3}
    return load(Config(corpus=corpus(tmp_path), **settings), volume)


def model(positions: str = "learned") -> BERT:
    return stirred(BERT(WORDS, SEQ, PAD, d_model=16, N=2, h=2, d_ff=24, positions=positions))


def some() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(5, WORDS, (3, SEQ), generator=torch.Generator().manual_seed(2))
    ids[1, 8:] = PAD
    return ids, (torch.arange(SEQ) >= 5).long().expand(3, -1)


@torch.no_grad()
def test_it_is_torchs_layers_with_the_same_weights():
    ours, (ids, segments) = model(), some()
    x = ours.embed.embedding.weight[ids] * math.sqrt(16) + ours.segments.weight[segments] + ours.positions.pe
    theirs = torch_encoder(ours.encoder)(x, src_key_padding_mask=ids == PAD)
    real = ids != PAD
    torch.testing.assert_close(ours.encode(ids, segments)[real], theirs[real], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_each_word_sees_both_sides_but_no_padding():
    ours, (ids, segments) = model(), some()
    before = ours.encode(ids, segments)
    for place in (0, SEQ - 1):
        changed = ids.clone()
        changed[0, place] = 6 if ids[0, place] == 5 else 5
        after = ours.encode(changed, segments)
        assert not torch.isclose(before[0], after[0]).all(-1).any() and torch.equal(before[2], after[2])
    longer = torch.cat([ids[:1, :8], torch.full((1, 4), PAD)], 1)
    torch.testing.assert_close(ours.encode(longer, segments[:1])[:, :8], ours.encode(ids[:1, :8], segments[:1, :8]))


def test_of_the_chosen_words_80_percent_are_masked_10_replaced_and_10_kept():
    generator, mask, words = torch.Generator().manual_seed(0), 4, torch.arange(5, WORDS)
    ids = torch.randint(0, WORDS, (400, 500), generator=generator)
    maskable = torch.isin(ids, words)
    hidden, labels = mask_tokens(ids, maskable, mask, words, 0.15, generator)
    asked = labels != IGNORED
    assert not (asked & ~maskable).any() and torch.equal(labels[asked], ids[asked])
    assert torch.equal(hidden[~asked], ids[~asked]), "what is not asked for stays"
    share = asked.sum() / maskable.sum()
    masked = (hidden[asked] == mask).float().mean()
    kept = (hidden[asked] == ids[asked]).float().mean()  # a word is replaced by itself once in 25 times
    assert share == pytest.approx(0.15, abs=0.005)
    assert masked == pytest.approx(0.8, abs=0.01) and kept == pytest.approx(0.1 + 0.1 / 25, abs=0.01)
    replaced = hidden[asked & (hidden != ids) & (hidden != mask)]
    assert torch.isin(replaced, words).all() and len(replaced.unique()) == len(words)


@torch.no_grad()
def test_the_loss_is_that_of_the_masked_words_and_of_the_next_text():
    ours, (ids, segments) = model(), some()
    labels = torch.full_like(ids, IGNORED)
    labels[0, 2], labels[2, 7] = 9, 11
    words, follows = ours(ids, segments)
    by_hand = -(words[0, 2].log_softmax(-1)[9] + words[2, 7].log_softmax(-1)[11]) / 2
    by_hand -= follows.log_softmax(-1)[torch.arange(3), [1, 0, 1]].mean()
    torch.testing.assert_close(loss_of(ours, ids, segments, labels, torch.tensor([1, 0, 1])), by_hand)


def test_b_follows_a_in_half_of_the_pairs_and_comes_from_elsewhere_in_the_others(pairs):
    generator = torch.Generator().manual_seed(0)
    name, number = pairs.tokenizer.id_to_token, {}
    for block, texts in enumerate(pairs.blocks):
        for at, ids in enumerate(texts):
            number[tuple(ids)] = (block, at)
    found = Counter()
    for at in range(len(pairs)):
        for follows in (True, False):
            first, second = pairs.pair(at, follows, generator)
            assert name(first[0]) == "[CLS]" and name(first[-1]) == name(second[-1]) == "[SEP]"
            assert len(first) + len(second) <= 64
            block, start = pairs.starts[at]
            texts = pairs.blocks[block]
            end = start + (len(texts) - start) // 2
            after = [token for ids in texts[end:] for token in ids][:30]
            assert first[1:-1] == [token for ids in texts[start:end] for token in ids][-30:]
            found[follows, second[:-1] == after] += 1
    assert found[True, True] == len(pairs) and found[False, True] <= 2
    examples = pairs.examples(torch.arange(len(pairs)), generator)
    assert 0.3 < examples.follows.float().mean() < 0.7


def test_examples_are_drawn_again_and_no_special_token_is_masked(pairs):
    generator, index = torch.Generator().manual_seed(0), torch.arange(4)
    first, again = pairs.examples(index, generator), pairs.examples(index, generator)
    assert not torch.equal(first.labels, again.labels)
    special = {pairs.id(token) for token in ("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]")}
    assert not special & set(pairs.word_ids.tolist()) and not special & set(first.labels.unique().tolist())


def test_the_figures_are_counted_over_what_is_requested(pairs):
    val = pairs.val.examples(torch.arange(len(pairs.val)), torch.Generator().manual_seed(0))
    ours = stirred(BERT(pairs.tokenizer.get_vocab_size(), 64, PAD, **Config(**SMALL).size()))
    frequent = pairs.tokenizer.token_to_id("number")  # as frequent as two others, and the first of them
    figures = bert.figures_of(ours, val, pairs, batch=7)
    with torch.no_grad():
        words, follows = ours(val.ids, val.segments)
    asked = val.labels != IGNORED
    wanted = val.labels[asked]
    assert figures["masked_percent"] == pytest.approx(100 * (words.argmax(-1)[asked] == wanted).float().mean().item())
    assert figures["most_frequent_word_percent"] == pytest.approx(100 * (wanted == frequent).float().mean().item())
    assert figures["next_text_percent"] == pytest.approx(
        100 * (follows.argmax(-1) == val.follows).float().mean().item()
    )
    (line,) = bert.filled(ours, pairs.tokenizer, Examples(*(one[:1] for one in val)))
    assert line.startswith("[CLS] ") and line.count(" → ") == int(asked[0].sum()) and not line.endswith("[PAD]")


def test_a_corpus_without_neighbours_is_refused(tmp_path, volume):
    with pytest.raises(ValueError, match="is too short.*held-fraction"):
        load(Config(corpus=corpus(tmp_path, lines=40)), volume)
