"""Skip-gram: who is whose neighbour, what a batch costs, and questions whose answer is known."""

import math

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from bench.parts import practice_words
from services.ws_mdl.practice import bert, skipgram
from services.ws_mdl.practice.skipgram import (
    Config,
    SkipGram,
    load,
    loss_of,
    nearest,
    neighbours,
    padded,
    told_right,
    word_scores,
)
from services.ws_mdl.transformer.tokenization import train_tokenizer
from tests.ws_mdl.practice import SMALL, corpus, machine, stirred

PAD = 1


def test_neighbours_do_not_reach_into_another_text():
    stream = padded([[[5, 6, 7], [8]], [[9, 4]]], PAD, window=2)
    assert stream.tolist() == [1, 1, 5, 6, 7, 1, 1, 8, 1, 1, 9, 4, 1, 1]
    places = (stream != PAD).nonzero().squeeze(1)
    assert neighbours(stream, places, 2).tolist() == [
        [1, 1, 6, 7], [1, 5, 7, 1], [5, 6, 1, 1], [1, 1, 1, 1], [1, 1, 4, 1], [1, 9, 1, 1],
    ]  # fmt: skip


def test_a_batch_costs_what_one_reckons_by_hand():
    model = stirred(SkipGram(12, 4, PAD))
    middle, near = torch.tensor([3, 5]), torch.tensor([[4, PAD], [6, 7]])
    drawn = torch.tensor([[8, 9, 10], [2, 3, 11]])
    cost = 0.0
    for row in range(2):
        u = model.middle.weight[middle[row]]
        for word in near[row][near[row] != PAD]:
            cost -= F.logsigmoid(u @ model.beside.weight[word]).item()
            cost -= sum(F.logsigmoid(-u @ model.beside.weight[other]).item() for other in drawn[row])
    assert loss_of(model, middle, near, drawn).item() == pytest.approx(cost / 3, rel=1e-5)
    assert loss_of(model, middle, torch.full((2, 2), PAD), drawn) == 0, "without a neighbour there is nothing to learn"


def test_a_batch_is_learned_by_heart():
    torch.manual_seed(0)
    model = SkipGram(20, 16, PAD)
    middle, near, drawn = torch.tensor([2, 3, 4]), torch.tensor([[5, 6], [7, 8], [9, PAD]]), torch.arange(10, 19)
    optim = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(60):
        losses.append(loss := loss_of(model, middle, near, drawn.view(3, 3)))
        optim.zero_grad()
        loss.backward()
        optim.step()
    assert losses[0].item() == pytest.approx(4 * math.log(2), rel=1e-3) and losses[-1] < 0.05 * losses[0]


def test_frequent_words_are_left_out_and_the_reach_is_drawn(tmp_path, volume):
    found = load(Config(corpus=corpus(tmp_path), rare=0.01, window=3), volume)
    index = torch.arange(len(found))
    middle, near = found.examples(index, torch.Generator().manual_seed(0))
    whole = neighbours(found.train, found.places, 3)
    assert torch.equal(middle, found.train[found.places]) and ((near == whole) | (near == PAD)).all()
    the = found.tokenizer.token_to_id("the")
    share = found.counts[the] / found.counts.sum()
    assert found.kept[the].item() == pytest.approx(math.sqrt(0.01 / share), rel=1e-4)
    left = (near == the).sum() / (whole == the).sum()
    assert left < found.kept[the], "and of the rest some are out of reach, or their middle is left out"
    far, close = ((near[:, place] != PAD).sum() for place in (0, 2))
    assert far < 0.6 * close, "the third word is seen in a third of the draws"


def test_the_missing_word_is_the_one_that_the_counts_tell():
    # two words in the middle, each with its own neighbour: products as far apart as a table makes them
    model = SkipGram(6, 2, PAD)
    with torch.no_grad():
        model.middle.weight[2], model.middle.weight[3] = torch.tensor([4.0, 0.0]), torch.tensor([0.0, 4.0])
        model.beside.weight[4], model.beside.weight[5] = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    counts = torch.tensor([0.1, 0.1, 10.0, 30.0, 1.0, 1.0])
    near = torch.tensor([[4, PAD], [5, PAD], [PAD, PAD]])
    scores = word_scores(model, near, counts, trust=1.0)
    assert scores.argmax(dim=1).tolist() == [2, 3, 3], "and without a neighbour the most frequent one"
    assert scores[0, 2].item() == pytest.approx(math.log(10) + 4) and scores[2, 2].item() == pytest.approx(math.log(10))
    assert told_right(model, near, torch.tensor([2, 3, 2]), counts, 1.0) == pytest.approx(2 / 3)


def test_nearest_words_point_the_same_way():
    vectors = torch.tensor([[9.0, 0], [1, 0], [2, 0.1], [0, 5], [-3, 0]])
    assert nearest(vectors, 1, torch.tensor([1, 2, 3, 4]), 2) == [2, 3]


# --- the same questions for both ----------------------------------------------------------------------------


@pytest.fixture
def both(tmp_path, volume):
    path = corpus(tmp_path)
    masked = bert.get_training(
        bert.Config(**{**SMALL, "corpus": path, "seq": 24, "held_fraction": 0.3, "dropout": 0.0}), machine(), volume
    )
    vectors = skipgram.get_training(
        Config(corpus=path, held_fraction=0.3, d_model=8, epochs=1, device="cpu", precision="fp32"), machine(), volume
    )
    return masked, vectors


def test_both_are_asked_for_the_same_hidden_words(both):
    masked, vectors = both
    mask, held = masked.data.id("[MASK]"), masked.held
    asked = practice_words.hidden_places(held, mask)
    assert asked.any() and (held.ids[asked] == mask).all() and (held.labels[asked] >= 0).all()
    special = [masked.data.id(token) for token in ("[CLS]", "[SEP]", "[MASK]", "[PAD]", "[SOS]", "[EOS]", "[UNK]")]
    said = masked.averaged(held.ids, held.segments)[0].argmax(-1)
    share = (said[asked] == held.labels[asked]).double().mean().item()
    assert practice_words.bert_tells(masked.averaged, held, mask) == pytest.approx(share)
    torch.nn.init.zeros_(vectors.averaged.beside.weight)  # nothing is learned: the most frequent word, everywhere
    common = (held.labels[asked] == vectors.data.asked.argmax()).double().mean().item()
    found = practice_words.skipgram_tells(vectors.averaged, vectors.data, held, special, mask)
    assert 0 < common == pytest.approx(found)


def test_hidden_words_see_neither_special_tokens_nor_another_example(both):
    masked, vectors = both
    mask, held = masked.data.id("[MASK]"), masked.held
    special = [masked.data.id(token) for token in ("[CLS]", "[SEP]", "[MASK]", "[PAD]", "[SOS]", "[EOS]", "[UNK]")]
    seen = []
    original = practice_words.told_right

    def spy(model, near, words, counts, trust):
        seen.append(near)
        return original(model, near, words, counts, trust)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(practice_words, "told_right", spy)
        practice_words.skipgram_tells(vectors.averaged, vectors.data, held, special, mask)
    near = seen[-1]
    assert not set(near.unique().tolist()) & (set(special) - {PAD}) and near.shape[1] == 2 * vectors.data.window


@torch.no_grad()
def test_a_mean_is_of_every_place_where_a_word_stands(both):
    masked, _ = both
    model, tokenizer = masked.averaged, masked.data.tokenizer
    begin, end = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    texts = [tokenizer.encode(text).ids for text in ("the black cat", "me the dog")]
    found = practice_words.mean_vectors(model, [texts], tokenizer)
    the = tokenizer.token_to_id("the")
    rows = [model.encode(ids := torch.tensor([[begin, *one, end]]), torch.zeros_like(ids))[0] for one in texts]
    torch.testing.assert_close(found[the], (rows[0][1] + rows[1][2]) / 2, rtol=1e-4, atol=1e-5)


def test_the_probe_tells_what_vectors_know_and_nothing_of_what_they_do_not():
    words = [f"w{chr(97 + at // 26)}{chr(97 + at % 26)}" for at in range(120)]
    tokenizer: Tokenizer = train_tokenizer([*words, *(word + "s" for word in words)] * 2, "word", 2, 0)
    pairs = practice_words.number_pairs(tokenizer)
    assert len(pairs) == 120 and all(
        tokenizer.id_to_token(several) == tokenizer.id_to_token(one) + "s" for one, several in pairs
    )
    torch.manual_seed(0)
    blind = torch.randn(tokenizer.get_vocab_size(), 8)
    knowing = blind.clone()
    knowing[[several for _, several in pairs]] += torch.tensor([3.0] + 7 * [0.0])
    assert practice_words.probe(knowing, pairs) > 0.85 and abs(practice_words.probe(blind, pairs) - 0.5) < 0.12
