"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017), from the embedding to the output words.

Read it from top to bottom: each class uses only what stands above it. Shapes stand at the end of the line:
batch sentences of seq tokens, each a vector of d_model numbers, seen by h heads of d_k = d_model / h numbers each.
Masks are boolean, true where a query may look at a key, and broadcast to (batch, h, queries, keys).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from services.ws_mdl.transformer.config import Config

NORMS = ("pre", "post")
POSITIONS = ("sinusoidal", "learned", "rotary", "relative")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


# --- words and positions -------------------------------------------------------------------------------------


class InputEmbeddings(nn.Module):
    """Each token id becomes a vector that is learned, times √d_model (section 3.4 of the paper)."""

    def __init__(self, d_model: int, vocab_size: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.embedding = nn.Embedding(vocab_size, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.embedding(x) * math.sqrt(self.d_model)  # (batch, seq) -> (batch, seq, d_model)


def sinusoids(seq: int, d_model: int) -> Tensor:
    """Return the paper's table of positions, float [seq, d_model].

    Column 2i is sin(p / 10000^(2i / d_model)), column 2i + 1 the cosine of the same angle.
    """
    position = torch.arange(seq, dtype=torch.float).unsqueeze(1)  # (seq, 1)
    frequency = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))  # (d_model / 2)
    table = torch.zeros(seq, d_model)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency)
    return table


class PositionalEncoding(nn.Module):
    """Adds each token's position to its vector, since attention itself is order-invariant.

    kind: "sinusoidal" (the paper's table), "learned" (a trained table), or "rotary" and "relative", which add nothing
    here: `RotaryEncoding` rotates queries and keys instead, `RelativeBias` adds to their scores.
    """

    def __init__(self, d_model: int, seq: int, dropout: float, kind: str = "sinusoidal") -> None:
        super().__init__()
        self.seq = seq
        self.dropout = nn.Dropout(dropout)
        if kind == "learned":
            self.pe = nn.Parameter(torch.empty(1, seq, d_model))  # build_transformer fills it
        else:
            self.register_buffer("pe", sinusoids(seq, d_model).unsqueeze(0) if kind == "sinusoidal" else None)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        end = offset + x.shape[1]
        if end > self.seq:
            raise ValueError(f"sentence of {end} tokens exceeds the model's seq = {self.seq}")
        if self.pe is not None:
            x = x + self.pe[:, offset:end]  # (batch, seq, d_model) + (1, seq, d_model)
        return self.dropout(x)


class RotaryEncoding(nn.Module):
    """Rotates pairs of dimensions by an angle proportional to the position (Su et al., 2021).

    The product of a rotated query and a rotated key depends on their distance only.
    """

    def __init__(self, d_k: int, seq: int) -> None:
        super().__init__()
        table = sinusoids(seq, d_k)  # (seq, d_k)
        self.register_buffer("sin", table[:, 0::2].clone(), persistent=False)  # (seq, d_k / 2)
        self.register_buffer("cos", table[:, 1::2].clone(), persistent=False)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        positions = slice(offset, offset + x.shape[-2])
        sin, cos = self.sin[positions].to(x.dtype), self.cos[positions].to(x.dtype)  # (seq, d_k / 2)
        even, odd = x[..., 0::2], x[..., 1::2]  # (batch, h, seq, d_k / 2)
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


class RelativeBias(nn.Module):
    """Adds a learned bias per head and signed distance of query and key to the scores (T5, 2020).

    Distances below `near` have their own bias. Longer ones share logarithmic buckets, and all from about `far` on share
    one, so sentences may be longer than in training.
    """

    def __init__(self, h: int, near: int = 8, far: int = 64, buckets: int = 16) -> None:
        super().__init__()
        self.near, self.far, self.buckets = near, far, buckets
        self.table = nn.Parameter(torch.zeros(2 * buckets, h))  # keys up to the query; keys after it

    def bucket(self, distance: Tensor) -> Tensor:
        """Return the table's row for each distance int64, key minus query; from `buckets` on for later keys."""
        size = distance.abs()
        beyond = (size.clamp(min=1) / self.near).log() / math.log(self.far / self.near)  # 0 at near, 1 at far
        shared = (self.near + beyond * (self.buckets - self.near)).long().clamp(max=self.buckets - 1)
        return torch.where(size < self.near, size, shared) + self.buckets * (distance > 0)

    def forward(self, queries: int, keys: int, offset: int = 0) -> Tensor:
        """Return the bias on the scores of queries from position `offset` on, float [1, h, queries, keys]."""
        positions = torch.arange(max(keys, offset + queries), device=self.table.device)
        distance = positions[:keys] - positions[offset : offset + queries, None]  # (queries, keys)
        return self.table[self.bucket(distance)].permute(2, 0, 1).unsqueeze(0)


# --- attention ----------------------------------------------------------------------------------------------


def attention(
    query: Tensor, key: Tensor, value: Tensor,
    mask: Tensor | None = None, dropout: float = 0.0, need_weights: bool = False, bias: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return softmax(query · keyᵀ / √d_k) · value, and the softmax's weights if need_weights, else None.

    query [batch, h, queries, d_k]; key and value [batch, h, keys, d_k]; mask bool, broadcast to [batch, h, queries,
    keys]: every query must see a key; bias float, of the same shape: added to the scores. Without need_weights a fused
    kernel never stores the weights.
    """
    learns_in_bf16 = query.dtype == torch.bfloat16 and query.requires_grad
    # On a CPU there is no fused kernel with dropout, and its backward pass in bf16 takes five times as long.
    unfused = query.device.type == "cpu" and (dropout > 0 or learns_in_bf16)
    if not need_weights and not unfused:
        if bias is not None:
            mask = bias.to(query.dtype) if mask is None else bias.to(query.dtype).where(mask, float("-inf"))
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout), None
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])  # (batch, h, queries, keys)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))  # exp(-inf) = 0, in float16 too
    weights = scores.softmax(dim=-1)
    return F.dropout(weights, dropout) @ value, weights if need_weights else None


class KeyValueCache:
    """The keys and values of an attention block for earlier words of the translation.

    grows: true for self-attention, which adds a word at each step; false for cross-attention, whose keys and values
    come from the encoder and stay as they are.
    """

    def __init__(self, grows: bool) -> None:
        self.grows = grows
        self.key: Tensor | None = None  # (batch, h, words so far, d_k)
        self.value: Tensor | None = None

    def __len__(self) -> int:
        return 0 if self.key is None else self.key.shape[-2]

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values; return all of them."""
        if self.key is not None:
            key, value = torch.cat([self.key, key], dim=-2), torch.cat([self.value, value], dim=-2)
        self.key, self.value = key, value
        return key, value

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order; a row may occur more than once."""
        if self.key is not None:
            self.key, self.value = self.key[rows], self.value[rows]


class MultiHeadAttentionBlock(nn.Module):
    """h attention heads of d_k dimensions each, joined by a linear layer.

    With `need_weights` set, `attention_scores` [batch, h, queries, keys] stores the last call's weights for plots.
    """

    def __init__(
        self, d_model: int, h: int, dropout: float, rotary: RotaryEncoding | None = None,
        relative: RelativeBias | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if d_model % h != 0:
            raise ValueError(f"d_model {d_model} cannot be divided among h = {h} heads; choose h that divides d_model")
        self.h = h
        self.d_k = d_model // h
        self.w_q = nn.Linear(d_model, d_model, bias=False)
        self.w_k = nn.Linear(d_model, d_model, bias=False)
        self.w_v = nn.Linear(d_model, d_model, bias=False)
        self.w_o = nn.Linear(d_model, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.rotary = rotary
        self.relative = relative
        self.need_weights = False
        self.attention_scores: Tensor | None = None

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, cache: KeyValueCache | None = None
    ) -> Tensor:
        """Return [batch, queries, d_model]; keys and values in `cache` precede those of k and v."""
        offset = len(cache) if cache is not None else 0
        query = self.split_heads(self.w_q(q))  # (batch, h, queries, d_k)
        if self.rotary:
            query = self.rotary(query, offset)
        if cache is not None and not cache.grows and cache.key is not None:
            key, value = cache.key, cache.value  # (batch, h, keys, d_k)
        else:
            key, value = self.split_heads(self.w_k(k)), self.split_heads(self.w_v(v))
            if self.rotary:
                key = self.rotary(key, offset)
            if cache is not None:
                key, value = cache.extend(key, value)
        dropout = self.dropout.p if self.training else 0.0
        bias = self.relative(query.shape[-2], key.shape[-2], offset) if self.relative else None
        x, self.attention_scores = attention(query, key, value, mask, dropout, self.need_weights, bias)
        return self.w_o(x.transpose(1, 2).flatten(2))  # (batch, queries, h, d_k) -> (batch, queries, d_model)

    def split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.h, self.d_k)).transpose(1, 2)  # (batch, seq, d_model) -> (batch, h, seq, d_k)


# --- around attention ----------------------------------------------------------------------------------------


class LayerNormalization(nn.Module):
    """alpha · (x - mean) / √(variance + eps) + bias, mean and variance over each vector."""

    def __init__(self, features: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.alpha = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.alpha.shape, self.alpha, self.bias, self.eps)  # (batch, seq, features)


class FeedForwardBlock(nn.Module):
    """Two linear layers with a nonlinearity between them, applied to each position separately."""

    def __init__(self, d_model: int, d_ff: int, dropout: float, activation: str = "relu") -> None:
        super().__init__()
        self.linear_1 = nn.Linear(d_model, d_ff)
        self.dropout = nn.Dropout(dropout)
        self.linear_2 = nn.Linear(d_ff, d_model)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(self.dropout(self.activation(self.linear_1(x))))  # d_model -> d_ff -> d_model


class ResidualConnection(nn.Module):
    """The connection around a sublayer: x + sublayer(norm(x)) ("pre"), or norm(x + sublayer(x)) ("post").

    The paper normalizes after; the course and most later models before, which trains without a careful warm-up.
    """

    def __init__(self, features: int, dropout: float, norm: str = "pre") -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.norm = LayerNormalization(features)
        self.norm_first = norm == "pre"

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


# --- encoder and decoder ------------------------------------------------------------------------------------


class EncoderBlock(nn.Module):
    """Self-attention among source words, then feed-forward per word."""

    def __init__(
        self, features: int, self_attention_block: MultiHeadAttentionBlock, feed_forward_block: FeedForwardBlock,
        dropout: float, norm: str = "pre",
    ) -> None:  # fmt: skip
        super().__init__()
        self.self_attention_block = self_attention_block
        self.feed_forward_block = feed_forward_block
        self.residual_connections = nn.ModuleList(ResidualConnection(features, dropout, norm) for _ in range(2))

    def forward(self, x: Tensor, src_mask: Tensor | None) -> Tensor:
        x = self.residual_connections[0](x, lambda x: self.self_attention_block(x, x, x, src_mask))
        return self.residual_connections[1](x, self.feed_forward_block)


class Encoder(nn.Module):
    """N encoder blocks, one after the other."""

    def __init__(self, features: int, layers: nn.ModuleList, norm: str = "pre") -> None:
        super().__init__()
        self.layers = layers
        # with "post" the last block normalizes
        self.norm = LayerNormalization(features) if norm == "pre" else nn.Identity()

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)  # (batch, seq, d_model)


LayerCache = tuple[KeyValueCache, KeyValueCache]  # of a decoder block's self-attention and cross-attention


class DecoderBlock(nn.Module):
    """Causal self-attention among target words, cross-attention to the source, then feed-forward per word."""

    def __init__(
        self, features: int, self_attention_block: MultiHeadAttentionBlock,
        cross_attention_block: MultiHeadAttentionBlock, feed_forward_block: FeedForwardBlock,
        dropout: float, norm: str = "pre",
    ) -> None:  # fmt: skip
        super().__init__()
        self.self_attention_block = self_attention_block
        self.cross_attention_block = cross_attention_block
        self.feed_forward_block = feed_forward_block
        self.residual_connections = nn.ModuleList(ResidualConnection(features, dropout, norm) for _ in range(3))

    def forward(
        self, x: Tensor, encoder_output: Tensor, src_mask: Tensor | None, tgt_mask: Tensor | None,
        cache: LayerCache | tuple[None, None] = (None, None),
    ) -> Tensor:  # fmt: skip
        own, cross, source = *cache, encoder_output
        x = self.residual_connections[0](x, lambda x: self.self_attention_block(x, x, x, tgt_mask, own))
        x = self.residual_connections[1](x, lambda x: self.cross_attention_block(x, source, source, src_mask, cross))
        return self.residual_connections[2](x, self.feed_forward_block)


class Decoder(nn.Module):
    """N decoder blocks, one after the other."""

    def __init__(self, features: int, layers: nn.ModuleList, norm: str = "pre") -> None:
        super().__init__()
        self.layers = layers
        # with "post" the last block normalizes
        self.norm = LayerNormalization(features) if norm == "pre" else nn.Identity()

    def forward(
        self, x: Tensor, encoder_output: Tensor, src_mask: Tensor | None, tgt_mask: Tensor | None,
        cache: list[LayerCache] | None = None,
    ) -> Tensor:  # fmt: skip
        for layer, layer_cache in zip(self.layers, cache or [(None, None)] * len(self.layers), strict=True):
            x = layer(x, encoder_output, src_mask, tgt_mask, layer_cache)
        return self.norm(x)  # (batch, seq, d_model)


class ProjectionLayer(nn.Module):
    """Projects each vector to a score for every word of the target vocabulary."""

    def __init__(self, d_model: int, vocab_size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(d_model, vocab_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)  # (..., d_model) -> (..., vocab_size)


# --- all of it ----------------------------------------------------------------------------------------------


class Transformer(nn.Module):
    """Encoder, decoder, embeddings and projection."""

    def __init__(
        self, encoder: Encoder, decoder: Decoder, src_embed: InputEmbeddings, tgt_embed: InputEmbeddings,
        src_pos: PositionalEncoding, tgt_pos: PositionalEncoding, projection_layer: ProjectionLayer,
    ) -> None:  # fmt: skip
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.src_embed = src_embed
        self.tgt_embed = tgt_embed
        self.src_pos = src_pos
        self.tgt_pos = tgt_pos
        self.projection_layer = projection_layer

    def encode(self, src: Tensor, src_mask: Tensor | None) -> Tensor:
        """Encode token ids [batch, seq] to float [batch, seq, d_model]."""
        return self.encoder(self.src_pos(self.src_embed(src)), src_mask)

    def decode(
        self, encoder_output: Tensor, src_mask: Tensor | None, tgt: Tensor, tgt_mask: Tensor | None,
        cache: list[LayerCache] | None = None,
    ) -> Tensor:  # fmt: skip
        """Return float [batch, seq, d_model] for the target ids [batch, seq].

        With `cache` (from `new_cache`), tgt has only the tokens that are not in the cache.
        """
        offset = len(cache[0][0]) if cache else 0
        return self.decoder(self.tgt_pos(self.tgt_embed(tgt), offset), encoder_output, src_mask, tgt_mask, cache)

    def project(self, x: Tensor) -> Tensor:
        """Return scores [..., target vocabulary] (logits: no softmax yet)."""
        return self.projection_layer(x)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor | None, tgt_mask: Tensor | None) -> Tensor:
        """Return the scores [batch, seq, target vocabulary] of each target position's next word."""
        return self.project(self.decode(self.encode(src, src_mask), src_mask, tgt, tgt_mask))

    def new_cache(self) -> list[LayerCache]:
        """Return an empty cache for `decode`: a pair per decoder block."""
        return [(KeyValueCache(grows=True), KeyValueCache(grows=False)) for _ in self.decoder.layers]


def build_transformer(
    src_vocab_size: int, tgt_vocab_size: int, src_seq: int, tgt_seq: int,
    d_model: int = 512, N: int = 6, h: int = 8, dropout: float = 0.1, d_ff: int = 2048, *,
    norm: str = "pre", activation: str = "relu", positions: str = "sinusoidal", tied: bool = False,
) -> Transformer:  # fmt: skip
    """Return a Transformer with Xavier-uniform weights; the defaults are the paper's base model, normalized before.

    norm: "pre" or "post". activation: "relu" or "gelu". positions: "sinusoidal", "learned", "rotary" or "relative".
    tied: the target's embedding and the projection share their weights. Raises ValueError for invalid values.
    """
    choices = (("norm", norm, NORMS), ("activation", activation, ACTIVATIONS), ("positions", positions, POSITIONS))
    for name, value, names in choices:
        if value not in names:
            raise ValueError(f"unknown {name} {value!r}; choose {', '.join(names)}")
    if h < 1 or d_model % h != 0:
        raise ValueError(f"d_model {d_model} cannot be divided among h = {h} heads; choose h that divides d_model")
    if (d_model if positions != "rotary" else d_model // h) % 2 != 0:
        raise ValueError(f"positions need an even width for sine and cosine; got d_model {d_model}, h = {h}")
    rotary = RotaryEncoding(d_model // h, max(src_seq, tgt_seq)) if positions == "rotary" else None

    def self_attention() -> MultiHeadAttentionBlock:
        relative = RelativeBias(h) if positions == "relative" else None  # each block has its own
        return MultiHeadAttentionBlock(d_model, h, dropout, rotary, relative)

    def feed_forward() -> FeedForwardBlock:
        return FeedForwardBlock(d_model, d_ff, dropout, activation)

    encoder_blocks = [EncoderBlock(d_model, self_attention(), feed_forward(), dropout, norm) for _ in range(N)]
    decoder_blocks = [
        DecoderBlock(
            d_model, self_attention(), MultiHeadAttentionBlock(d_model, h, dropout), feed_forward(), dropout, norm
        )
        for _ in range(N)
    ]
    transformer = Transformer(
        Encoder(d_model, nn.ModuleList(encoder_blocks), norm),
        Decoder(d_model, nn.ModuleList(decoder_blocks), norm),
        InputEmbeddings(d_model, src_vocab_size),
        InputEmbeddings(d_model, tgt_vocab_size),
        PositionalEncoding(d_model, src_seq, dropout, positions),
        PositionalEncoding(d_model, tgt_seq, dropout, positions),
        ProjectionLayer(d_model, tgt_vocab_size),
    )
    if tied:
        transformer.projection_layer.proj.weight = transformer.tgt_embed.embedding.weight
    for name, parameter in transformer.named_parameters():
        if name.endswith("_pos.pe"):
            nn.init.normal_(parameter, std=0.02)
        elif parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    return transformer


def get_model(config: Config, vocab_src_len: int, vocab_tgt_len: int) -> Transformer:
    """Return a new model of the configuration's size; the same seed gives the same weights."""
    torch.manual_seed(config.seed)
    return build_transformer(
        vocab_src_len, vocab_tgt_len, config.seq, config.seq, config.d_model, config.N, config.h, config.dropout,
        config.d_ff, norm=config.norm, activation=config.activation, positions=config.positions, tied=config.tied,
    )  # fmt: skip


class TranslationLoss(nn.Module):
    """Cross-entropy with label smoothing, summed over a batch's real tokens; a module, for torch.compile and DDP.

    Only real tokens are projected to the vocabulary, the widest layer.
    """

    def __init__(self, model: Transformer, label_smoothing: float = 0.1) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(
        self, encoder_input: Tensor, decoder_input: Tensor, label: Tensor, encoder_mask: Tensor,
        decoder_mask: Tensor, real: Tensor, smoothing: float | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the sum as a float32 scalar; the arguments are a `Batch`'s fields, in their order."""
        encoder_output = self.model.encode(encoder_input, encoder_mask)  # (batch, src seq, d_model)
        x = self.model.decode(encoder_output, encoder_mask, decoder_input, decoder_mask)  # (batch, tgt seq, d_model)
        logits = self.model.project(x.flatten(0, 1)[real])  # (real words, vocabulary)
        smoothing = self.label_smoothing if smoothing is None else smoothing
        return F.cross_entropy(logits.float(), label.flatten()[real], label_smoothing=smoothing, reduction="sum")


# --- weights of a file --------------------------------------------------------------------------------------


def describe(weights: dict[str, Tensor], config: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a model's dimensions from its weights, and from its configuration what shapes do not show."""
    positions = weights.get("src_pos.pe")
    return {
        "source vocabulary": weights["src_embed.embedding.weight"].shape[0],
        "target vocabulary": weights["tgt_embed.embedding.weight"].shape[0],
        "d_model": weights["src_embed.embedding.weight"].shape[1],
        "N": 1 + max(int(key.split(".")[2]) for key in weights if key.startswith("encoder.layers.")),
        "d_ff": weights["encoder.layers.0.feed_forward_block.linear_1.weight"].shape[0],
        "norm": "pre" if "encoder.norm.alpha" in weights else "post",
        "position table": None if positions is None else positions.shape[1],
        **{name: (config or {}).get(name) for name in ("h", "activation", "positions")},
    }


def load_into(model: Transformer, path: Path, state: dict[str, Any], config: dict[str, Any], advice: str) -> None:
    """Load the weights of a training's state, of this lab or of the course, into a model.

    Raises ValueError with both dimensions and `advice` on a mismatch.
    """
    weights = state["model_state_dict"]
    try:
        stored = describe(weights, state.get("config"))
    except (KeyError, ValueError, IndexError) as error:
        raise ValueError(f"{path} is not a weights file of this Transformer (it lacks {error})") from error
    expected = describe(model.state_dict(), config)
    # values that are only in a configuration may be missing, except the position table
    differ = [
        name
        for name in expected
        if expected[name] != stored[name] and (stored[name] is not None or name == "position table")
    ]
    if differ:
        sides = (", ".join(f"{name} {side[name]}" for name in differ) for side in (stored, expected))
        raise ValueError(f"{path} has {next(sides)}; this model has {next(sides)}; {advice}")
    if "config" not in state:  # the course's layer norm uses the standard deviation over n - 1 numbers, ours over n
        weights = {
            name: value * math.sqrt((value.numel() - 1) / value.numel()) if name.endswith("norm.alpha") else value
            for name, value in weights.items()
        }
    model.load_state_dict(weights)
