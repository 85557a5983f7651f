"""The numbers of "Small things" in docs/practice.md: each is computed here from lab 1's blocks, and stands there."""

import math
import re

import pytest
import torch
import torch.nn.functional as F

from services.ws_mdl.practice import small
from services.ws_mdl.practice.vit import VisionTransformer
from services.ws_mdl.transformer.config import get_config
from services.ws_mdl.transformer.model import build_transformer, sinusoids
from services.ws_mdl.transformer.train import learning_rate
from tests.forked import ROOT


def near(values, **how):
    return pytest.approx(values, **{"abs": 6e-5, **how})


def test_layer_norm_sees_a_word_and_batch_norm_a_feature():
    x = small.norm_example()
    layer, batch = small.layer_norm(x), small.batch_norm(x)
    assert x.shape == layer.shape == batch.shape == (3, 3, 4)
    torch.testing.assert_close(layer.mean(dim=-1), torch.zeros(3, 3), atol=1e-6, rtol=0)
    torch.testing.assert_close(batch.mean(dim=(0, 1)), torch.zeros(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(layer, F.layer_norm(x, (4,)), atol=1e-4, rtol=0)
    by_hand = (x - x.mean(dim=(0, 1))) / (x.var(dim=(0, 1), unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(batch, by_hand)


def test_ten_times_a_sentence_is_the_same_to_layer_norm_alone():
    x = small.norm_example()
    layer, batch = small.layer_norm(x), small.batch_norm(x)
    torch.testing.assert_close(layer[0], layer[2], atol=1e-4, rtol=0)
    assert layer[0, 0].tolist() == near([-1.3416, -0.4472, 0.4472, 1.3416])
    assert batch[0, 0].tolist() == near([-0.7293, -0.5459, -0.6673, -0.6083])
    assert batch[2, 0].tolist() == near([0.7476, 0.9038, 0.6618, 0.7699])
    alone = small.layer_norm(x[:1]), small.batch_norm(x[:1])
    assert torch.equal(alone[0], layer[:1]) and (alone[1] - batch[:1]).abs().max() > 0.5  # its neighbours matter


def test_positions_by_hand_are_the_models_table():
    torch.testing.assert_close(torch.tensor(small.positions_by_hand(5, 8)), sinusoids(5, 8), atol=1e-6, rtol=0)
    table = small.positions_by_hand(5, 8)
    assert table[0] == [0, 1, 0, 1, 0, 1, 0, 1]
    assert table[1] == near([0.8415, 0.5403, 0.0998, 0.9950, 0.0100, 1.0000, 0.0010, 1.0000])
    assert table[4] == near([-0.7568, -0.6536, 0.3894, 0.9211, 0.0400, 0.9992, 0.0040, 1.0000])


def test_positions_of_120_words_with_500_numbers():
    table = sinusoids(120, 500)
    assert table.shape == (120, 500) and table.abs().max() <= 1
    torch.testing.assert_close(table.norm(dim=1), torch.full((120,), math.sqrt(250)))  # sin² + cos², 250 times
    products = table @ table.T
    for apart, expected in ((0, 250.0), (1, 243.26), (10, 169.70), (50, 128.02)):
        along = products.diagonal(apart)
        assert along.max() - along.min() < 1e-2  # how far apart they stand is all that counts
        assert float(along[0]) == near(expected, abs=0.01)


def test_five_tokens_through_an_embedding():
    table, tokens = small.embedding_example()
    found = table(tokens)
    assert found.shape == (1, 5, 4)
    assert found[0, 0].tolist() == near([14.0, 14.2, 14.4, 14.6])  # row 7 times √4
    one_hot = F.one_hot(tokens, 10).float()
    torch.testing.assert_close(found, one_hot @ table.embedding.weight * 2)
    found.sum().backward()
    touched = table.embedding.weight.grad.abs().sum(dim=1).nonzero().flatten().tolist()
    assert touched == sorted(small.TOKENS)


def test_free_running_falls_behind_teacher_forcing():
    forced = small.taught(True, 150)
    found = small.forced_and_free(forced)
    assert (found.forced, found.free, found.rows) == near((0.75, 0.50, 0.07), abs=0.08)  # as the machine rounds
    assert found.forced > found.free + 0.1
    batch = small.digits_backwards(3, 6, torch.Generator().manual_seed(2))
    own = small.free_run(forced, batch).argmax(dim=-1)
    read = torch.cat([batch.decoder_input[:, :1], own[:, :-1]], dim=1)
    torch.testing.assert_close(  # what it says is what it would say if a teacher gave it its own words
        small.free_run(forced, batch), forced(batch.encoder_input, read, batch.encoder_mask), atol=1e-5, rtol=1e-4
    )


def test_the_rate_rises_for_4000_steps_and_falls_with_the_root():
    config = get_config("base")
    rates = {step: learning_rate(config, step) for step in (1, 1000, 4000, 16000, 100_000)}
    assert max(rates.values()) == rates[4000] == near(6.988e-4, abs=1e-7)
    assert rates[1] == near(1.747e-7, abs=1e-10) and rates[16000] == near(rates[4000] / 2, abs=1e-9)
    assert rates[100_000] == near(1.398e-4, abs=1e-7)


def test_label_smoothing_is_least_below_certainty():
    shares = [p / 1000 for p in range(1, 1000)]
    for smoothing, least in ((0.0, 0.999), (0.1, 0.901)):
        losses = {p: small.smoothed_loss(p, 100, smoothing) for p in shares}
        assert min(losses, key=losses.get) == near(least, abs=1e-9)
    assert small.smoothed_loss(0.901, 100, 0.1) == near(0.7778, abs=1e-3)  # the smoothed target's own entropy
    assert small.smoothed_loss(0.999, 100, 0.1) > 1.1 and small.smoothed_loss(0.999, 100, 0.0) < 0.002


def test_without_positions_order_is_not_seen():
    words, mean = small.permutation_differences(positions=False)
    assert words < 1e-5 and mean < 1e-5
    words, mean = small.permutation_differences(positions=True)
    assert words > 0.5 and mean > 0.01


def test_a_product_by_its_definition():
    a, b = torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(3, 4)
    found, count = small.product_by_loops(a, b)
    assert torch.equal(found, a @ b) and count == 24
    assert found.tolist() == [[20, 23, 26, 29], [56, 68, 80, 92]]


def test_the_order_of_products_costs_n_squared_or_d_squared():
    found = small.attention_products(1000, 64)
    assert found == {"(Q Kᵀ) V": 128_000_000, "Q (Kᵀ V)": 8_192_000}
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(7, 3, generator=generator).double() for _ in range(3))
    torch.testing.assert_close((q @ k.T) @ v, q @ (k.T @ v))
    with_softmax = (q @ k.T).softmax(dim=-1) @ v
    assert (with_softmax - q @ (k.T @ v)).abs().max() > 0.1


def test_parameter_counts_are_the_papers():
    found = small.parameter_counts()
    assert found == {"Transformer base": 63_084_680, "ViT-B/16": 86_530_792, "BERT base": 109_446_912}
    for name, expected in small.PAPERS.items():
        assert found[name] == pytest.approx(expected, rel=0.03)


def test_the_counts_are_those_of_the_models_that_are_trained():
    with torch.device("meta"):
        ours = VisionTransformer(224, 3, 1000, patch=16, d_model=768, N=12, h=12, d_ff=3072)
        two_tables = build_transformer(small.WORD_PIECES, small.WORD_PIECES, 512, 512, tied=True)
    assert small.count(ours) == small.parameter_counts()["ViT-B/16"]
    shared = small.parameter_counts()["Transformer base"]
    assert small.count(two_tables) == shared + small.WORD_PIECES * 512


def said(value, form):
    return format(value, form).replace("-", "−")


@pytest.mark.outside  # no image holds the docs
def test_the_page_has_these_numbers():
    text = (ROOT / "docs" / "practice.md").read_text(encoding="utf-8")
    x = small.norm_example()
    words = [small.layer_norm(x)[0, 0], small.batch_norm(x)[0, 0], small.batch_norm(x)[2, 0]]
    lists = [", ".join(said(value, ".4f") for value in row.tolist()) for row in words]
    rows = [
        f"| {p} | {' | '.join(f'{value:.4f}' for value in row)} |"
        for p, row in enumerate(small.positions_by_hand(5, 8))
    ]
    products = [f"{float(sinusoids(120, 500)[0] @ sinusoids(120, 500)[apart]):.2f}" for apart in (1, 10, 50)]
    rates = [f"{learning_rate(get_config('base'), step):.3e}" for step in (1, 4000, 100_000)]
    losses = [f"{small.smoothed_loss(p, 100, e):.3f}" for p, e in ((0.901, 0.1), (0.999, 0.1), (0.999, 0.0))]
    counts = [
        f"{number:,}" for number in (*small.parameter_counts().values(), *small.attention_products(1000, 64).values())
    ]
    for number in (*lists, *rows, *products, *rates, *losses, *counts):
        assert re.search(rf"\s{re.escape(number)}(?![\d])", text.replace("\n  ", " ")), number
