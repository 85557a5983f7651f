"""Skip-gram: who is whose neighbour, what a batch costs, and questions whose answer is known."""

import math

import pytest
import torch
import torch.nn.functional as F

from services.ws_mdl.practice.skipgram import (
    Config,
    SkipGram,
    load,
    loss_of,
    nearest,
    neighbours,
    padded,
)
from tests.ws_mdl.practice import corpus, stirred

PAD = 1


def test_neighbours_do_not_reach_into_another_text():
    stream = padded([[[5, 6, 7], [8]], [[9, 4]]], PAD, window=2)
    assert stream.tolist() == [1, 1, 5, 6, 7, 1, 1, 8, 1, 1, 9, 4, 1, 1]
    positions = (stream != PAD).nonzero().squeeze(1)
    assert neighbours(stream, positions, 2).tolist() == [
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
    whole = neighbours(found.train, found.positions, 3)
    assert torch.equal(middle, found.train[found.positions]) and ((near == whole) | (near == PAD)).all()
    the = found.tokenizer.token_to_id("the")
    share = found.counts[the] / found.counts.sum()
    assert found.keep_probability[the].item() == pytest.approx(math.sqrt(0.01 / share), rel=1e-4)
    left = (near == the).sum() / (whole == the).sum()
    assert left < found.keep_probability[the], "and of the rest some are out of reach, or their middle is left out"
    far, close = ((near[:, place] != PAD).sum() for place in (0, 2))
    assert far < 0.6 * close, "the third word is seen in a third of the draws"


def test_nearest_words_point_the_same_way():
    vectors = torch.tensor([[9.0, 0], [1, 0], [2, 0.1], [0, 5], [-3, 0]])
    assert nearest(vectors, 1, torch.tensor([1, 2, 3, 4]), 2) == [2, 3]


# --- the same questions for both ----------------------------------------------------------------------------
