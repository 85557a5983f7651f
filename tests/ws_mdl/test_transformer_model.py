"""The model's blocks: equal to PyTorch's own, with the course's names, and blind where masks say so."""

import math

import pytest
import torch
from torch import nn

from services.ws_mdl.transformer import model as lab
from services.ws_mdl.transformer.dataset import causal_mask, padding_mask
from tests.ws_mdl.practice import copy_attention, copy_norm

D_MODEL, H, D_FF, N = 32, 4, 64, 2
NORMS = pytest.mark.parametrize("norm", lab.NORMS)
TOLERANCE = {"atol": 1e-5, "rtol": 0}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def ids(batch: int, seq: int, vocabulary: int = 30) -> torch.Tensor:
    return torch.randint(4, vocabulary, (batch, seq))


def some_mask(batch: int, queries: int, keys: int) -> torch.Tensor:
    mask = torch.rand(batch, 1, queries, keys) > 0.4
    mask[..., 0] = True  # every query sees a key
    return mask


def randomize(module: nn.Module) -> nn.Module:
    """Give norms and biases values too, so that an equality means something."""
    for parameter in module.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=0.5, std=0.3)
    return module.eval()


# --- equal to torch.nn --------------------------------------------------------------------------------------


def copy_block(ours: nn.Module, theirs: nn.Module) -> None:
    """Copy an encoder or a decoder block into its torch.nn counterpart."""
    copy_attention(ours.self_attention_block, theirs.self_attn)
    if hasattr(ours, "cross_attention_block"):
        copy_attention(ours.cross_attention_block, theirs.multihead_attn)
    theirs.linear1.load_state_dict(ours.feed_forward_block.linear_1.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward_block.linear_2.state_dict())
    for i, connection in enumerate(ours.residual_connections, 1):
        copy_norm(connection.norm, getattr(theirs, f"norm{i}"))


def torch_settings(norm: str, activation: str = "relu") -> dict:
    return {
        "dim_feedforward": D_FF, "dropout": 0.0, "activation": activation, "batch_first": True,
        "norm_first": norm == "pre", "layer_norm_eps": 1e-6,
    }  # fmt: skip


def test_multi_head_attention_is_torchs():
    ours, theirs = lab.MultiHeadAttentionBlock(D_MODEL, H, 0.0), nn.MultiheadAttention(D_MODEL, H, batch_first=True)
    copy_attention(ours, theirs)
    q, k, mask = torch.randn(3, 5, D_MODEL), torch.randn(3, 7, D_MODEL), some_mask(3, 5, 7)
    ours.need_weights = True
    expected, weights = theirs(q, k, k, attn_mask=~mask.repeat(1, H, 1, 1).flatten(0, 1), average_attn_weights=False)
    torch.testing.assert_close(ours(q, k, k, mask), expected, **TOLERANCE)
    torch.testing.assert_close(ours.attention_scores, weights, **TOLERANCE)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # nn.Transformer's, about what nobody asked for
@NORMS
@pytest.mark.parametrize("activation", lab.ACTIVATIONS)
def test_the_whole_is_torchs_transformer(norm, activation):
    sizes = (30, 30, 20, 20, D_MODEL, N, H, 0.0, D_FF)
    ours = randomize(lab.build_transformer(*sizes, norm=norm, activation=activation))
    theirs = nn.Transformer(D_MODEL, H, N, N, **torch_settings(norm, activation)).train()
    for side in ("encoder", "decoder"):
        for mine, its in zip(getattr(ours, side).layers, getattr(theirs, side).layers, strict=True):
            copy_block(mine, its)
        if norm == "pre":
            copy_norm(getattr(ours, side).norm, getattr(theirs, side).norm)
        else:
            getattr(theirs, side).norm = None  # the paper's stacks end with their last block's norm
    src, tgt = ids(3, 9), ids(3, 7)
    src[1, 6:] = 1
    src_mask, tgt_mask = padding_mask(src, 1), causal_mask(7)
    embedded = ours.src_pos(ours.src_embed(src)), ours.tgt_pos(ours.tgt_embed(tgt))
    padding = ~src_mask[:, 0, 0]
    expected = theirs(*embedded, tgt_mask=~tgt_mask[0], src_key_padding_mask=padding, memory_key_padding_mask=padding)
    torch.testing.assert_close(ours.decode(ours.encode(src, src_mask), src_mask, tgt, tgt_mask), expected, **TOLERANCE)


def test_layer_normalization_is_its_formula_and_torchs():
    ours, theirs, x = (
        randomize(lab.LayerNormalization(D_MODEL)),
        nn.LayerNorm(D_MODEL, eps=1e-6),
        torch.randn(4, 5, D_MODEL) * 3 + 1,
    )
    copy_norm(ours, theirs)
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    torch.testing.assert_close(ours(x), ours.alpha * (x - mean) / torch.sqrt(variance + 1e-6) + ours.bias, **TOLERANCE)
    torch.testing.assert_close(ours(x), theirs(x), **TOLERANCE)


# --- attention ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("masked", [True, False])
def test_fused_and_explicit_attention_agree(dtype, masked):
    query, key, value = (torch.randn(3, H, n, 8).to(dtype) for n in (5, 7, 7))
    mask = some_mask(3, 5, 7) if masked else None
    fused, none = lab.attention(query, key, value, mask)
    explicit, weights = lab.attention(query, key, value, mask, need_weights=True)
    assert none is None and torch.isfinite(weights).all() and torch.isfinite(fused).all()
    torch.testing.assert_close(fused, explicit, atol=1e-5 if dtype == torch.float32 else 2e-2, rtol=0)
    torch.testing.assert_close(weights.float().sum(-1), torch.ones(3, H, 5), atol=1e-2, rtol=0)
    assert mask is None or (weights.masked_select(~mask.expand_as(weights)) == 0).all()


def test_attention_that_learns_in_bf16_has_the_gradients_of_float32():
    """On a CPU it takes another way than the fused kernel."""
    given, mask = [torch.randn(2, H, 5, 8) for _ in range(3)], some_mask(2, 5, 5)
    grads = []
    for dtype in (torch.float32, torch.bfloat16):
        leaves = [one.clone().to(dtype).requires_grad_() for one in given]
        out, weights = lab.attention(*leaves, mask)
        assert weights is None
        out.square().sum().backward()
        grads.append([leave.grad.float() for leave in leaves])
    for exact, rounded in zip(*grads, strict=True):
        torch.testing.assert_close(exact, rounded, atol=5e-2, rtol=5e-2)


def test_dropout_in_attention_keeps_the_mean():
    query, mask = torch.randn(1, 1, 4, 8), causal_mask(4)[None]
    without, _ = lab.attention(query, query, query, mask)
    torch.manual_seed(0)
    many = torch.stack([lab.attention(query, query, query, mask, dropout=0.3)[0] for _ in range(4000)])
    assert not torch.equal(many[0], many[1])
    torch.testing.assert_close(many.mean(0), without, atol=0.12, rtol=0)


def test_heads_that_do_not_divide_d_model_are_named():
    for build in (lambda: lab.MultiHeadAttentionBlock(32, 5, 0.1), lambda: lab.build_transformer(9, 9, 9, 9, 32, 1, 5)):
        with pytest.raises(ValueError, match="d_model 32 .* h = 5"):
            build()


# --- positions ----------------------------------------------------------------------------------------------


def test_sinusoids_are_the_papers_formula():
    table = lab.sinusoids(50, 16)
    for p, i in ((0, 0), (1, 0), (7, 3), (49, 7)):
        angle = p / 10000 ** (2 * i / 16)
        assert table[p, 2 * i] == pytest.approx(math.sin(angle), abs=1e-5)
        assert table[p, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-5)


def test_rotated_products_depend_on_distance_only():
    rotary, q, k = lab.RotaryEncoding(8, 64), torch.randn(8), torch.randn(8)
    turned_q, turned_k = rotary(q.expand(1, 1, 64, 8))[0, 0], rotary(k.expand(1, 1, 64, 8))[0, 0]
    products = turned_q @ turned_k.T
    for distance in (-5, 0, 3):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), **TOLERANCE)
    torch.testing.assert_close(rotary(q.expand(1, 1, 4, 8), offset=9), rotary(q.expand(1, 1, 13, 8))[:, :, 9:])


def test_a_sentence_longer_than_the_table_is_named(transformer):
    with pytest.raises(ValueError, match="25 tokens exceeds the model's seq = 24"):
        transformer.encode(ids(1, 25), None)


# --- the whole ----------------------------------------------------------------------------------------------


def course_keys(layers: int) -> set[str]:
    attention = [f"w_{letter}.weight" for letter in "qkvo"]
    feed_forward = [f"linear_{i}.{part}" for i in (1, 2) for part in ("weight", "bias")]
    keys = {"src_embed.embedding.weight", "tgt_embed.embedding.weight", "src_pos.pe", "tgt_pos.pe"}
    keys |= {"projection_layer.proj.weight", "projection_layer.proj.bias"}
    for side, blocks in (
        ("encoder", ["self_attention_block"]),
        ("decoder", ["self_attention_block", "cross_attention_block"]),
    ):
        keys |= {f"{side}.norm.{part}" for part in ("alpha", "bias")}
        for layer in (f"{side}.layers.{i}" for i in range(layers)):
            keys |= {f"{layer}.{block}.{weight}" for block in blocks for weight in attention}
            keys |= {f"{layer}.feed_forward_block.{weight}" for weight in feed_forward}
            norms = range(len(blocks) + 1)
            keys |= {f"{layer}.residual_connections.{i}.norm.{part}" for i in norms for part in ("alpha", "bias")}
    return keys


def test_state_dict_keys_are_the_courses():
    assert set(lab.build_transformer(9, 9, 9, 9, 32, 3, 4).state_dict()) == course_keys(3)


def test_nobody_looks_ahead_and_padding_changes_nothing(transformer):
    src, tgt = ids(2, 8), ids(2, 6)
    src[:, 5:] = 1
    src_mask, tgt_mask = padding_mask(src, 1), causal_mask(6)
    scores = transformer(src, tgt, src_mask, tgt_mask)
    other = tgt.clone()
    other[:, 4:] = ids(2, 2)
    torch.testing.assert_close(transformer(src, other, src_mask, tgt_mask)[:, :4], scores[:, :4], **TOLERANCE)
    torch.testing.assert_close(transformer(src[:, :5], tgt, None, tgt_mask), scores, **TOLERANCE)
    assert not torch.allclose(transformer(src, tgt, None, tgt_mask), scores, atol=1e-3)


def test_word_order_matters(transformer):
    src, tgt = ids(1, 6), ids(1, 4)
    assert not torch.allclose(transformer(src, tgt, None, None), transformer(src.flip(1), tgt, None, None), atol=1e-3)


def test_decoding_with_a_cache_gives_the_same_vectors(transformer):
    src, tgt = ids(3, 8), ids(3, 10)
    src[1, 4:] = 1
    src_mask = padding_mask(src, 1)
    encoded = transformer.encode(src, src_mask)
    whole = transformer.decode(encoded, src_mask, tgt, causal_mask(10))
    cache = transformer.new_cache()
    steps = [transformer.decode(encoded, src_mask, tgt[:, i : i + 1], None, cache) for i in range(10)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, **TOLERANCE)


def test_tied_weights_are_one_and_all_weights_learn(transformer):
    transformer.train()
    transformer(ids(2, 5), ids(2, 4), None, causal_mask(4)).square().mean().backward()
    assert [name for name, p in transformer.named_parameters() if p.grad is None or not p.grad.any()] == []
    tied = lab.build_transformer(9, 9, 9, 9, 32, 1, 4, tied=True)
    assert tied.projection_layer.proj.weight is tied.tgt_embed.embedding.weight


@pytest.mark.parametrize("wrong", [{"norm": "mid"}, {"positions": "none"}, {"activation": "tanh"}])
def test_an_unknown_choice_is_named_with_the_known_ones(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong.values()))!r}; choose"):
        lab.build_transformer(9, 9, 9, 9, 32, 1, 4, **wrong)


# --- relative positions -------------------------------------------------------------------------------------


def test_a_relative_bias_knows_distance_and_side_alone():
    bias = lab.RelativeBias(2)
    torch.nn.init.normal_(bias.table)
    whole = bias(90, 90)[0]  # (heads, queries, keys)
    for distance in (-70, -9, -1, 0, 1, 40):
        line = whole.diagonal(distance, -2, -1)
        assert torch.equal(line, line[:, :1].expand_as(line)), "it is the same wherever the two stand"
    assert torch.equal(bias(1, 51, offset=50)[0], whole[:, 50:51, :51]), "a query with its earlier words in a cache"
    assert torch.equal(bias(90, 400)[0, :, :, :90], whole)


def test_near_distances_have_a_row_each_and_far_ones_share():
    bias = lab.RelativeBias(1)
    before, behind = (bias.bucket(sign * torch.arange(1, 500)) for sign in (-1, 1))
    assert before[:7].tolist() == list(range(1, 8)) and (before.diff() >= 0).all()
    assert before[-1] == bias.buckets - 1 and (before[64:] == before[-1]).all(), "as far as 64 or 500: all alike"
    assert torch.equal(behind, before + bias.buckets) and bias.bucket(torch.tensor(0)) == 0


@pytest.mark.parametrize("masked", [True, False])
def test_a_bias_is_added_to_the_scores_in_both_ways_of_computing(masked):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 6, 8).unbind()
    bias, mask = torch.randn(1, 4, 6, 6), torch.rand(2, 1, 1, 6) < 0.7 if masked else None
    if masked:
        mask[..., 0] = True
    fused, _ = lab.attention(query, key, value, mask, bias=bias)
    shown, weights = lab.attention(query, key, value, mask, need_weights=True, bias=bias)
    scores = query @ key.transpose(-2, -1) / 8**0.5 + bias
    by_hand = (scores if mask is None else scores.masked_fill(~mask, float("-inf"))).softmax(-1)
    torch.testing.assert_close(weights, by_hand)
    torch.testing.assert_close(fused, by_hand @ value, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(shown, fused, rtol=1e-4, atol=1e-5)
