"""Lesson 1: the Transformer, from a table of positions to a model that reverses letters.

Run it: `./lab shell ws_mdl --command "python -m lessons.transformer"`. Read it from top to bottom: each part uses only
what is above it. `services/ws_mdl/transformer` is the same model, fast; a test compares their numbers on the same
weights. Comments at the end of a line give shapes, and a test checks each of them: batch sentences of seq tokens, each
a vector of d_model numbers; h heads of d_k = d_model / h numbers each.
"""

import math
import random
from collections import OrderedDict

import torch
from torch import Tensor, nn

PAD, SOS, EOS = 0, 1, 2  # padding, start and end of a sentence


# --- 1. words and positions --------------------------------------------------------------------------------------
class InputEmbeddings(nn.Module):
    """Map each token id to a learned vector, times √d_model (section 3.4 of the paper)."""

    def __init__(self, d_model: int, vocab_size: int):
        super().__init__()
        self.d_model = d_model
        self.embedding = nn.Embedding(vocab_size, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.embedding(x) * math.sqrt(self.d_model)  # (batch, seq, d_model)


def positions(seq: int, d_model: int) -> Tensor:
    """Return the table of positions: at p, column 2i is sin(p / 10000^(2i / d_model)), column 2i + 1 its cosine."""
    p = torch.arange(seq).float()[:, None]  # (seq, 1)
    two_i = torch.arange(0, d_model, 2).float()  # (d_model / 2)
    angle = p / 10000 ** (two_i / d_model)  # (seq, d_model / 2)
    pe = torch.zeros(seq, d_model)  # (seq, d_model)
    pe[:, 0::2] = torch.sin(angle)
    pe[:, 1::2] = torch.cos(angle)
    return pe.unsqueeze(0)  # (1, seq, d_model)


class PositionalEncoding(nn.Module):
    """Add its position to each vector, since attention itself is independent of order."""

    def __init__(self, d_model: int, seq: int, dropout: float):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("pe", positions(seq, d_model))

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x + self.pe[:, : x.shape[1]])  # (batch, seq, d_model)


# --- 2. attention ---------------------------------------------------------------------------------------------
def causal_mask(size: int) -> Tensor:
    """Return bool, true where query i may look at key j: at itself and at earlier positions."""
    return torch.triu(torch.ones(1, size, size), diagonal=1) == 0  # (1, size, size)


def padding_mask(ids: Tensor) -> Tensor:
    """Return bool, true at real tokens: no query may look at padding."""
    return (ids != PAD)[:, None, None, :]  # (batch, 1, 1, seq)


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return softmax(query · keyᵀ / √d_k) · value; keys are ignored where the mask is false."""
    d_k = query.shape[-1]
    scores = query @ key.transpose(-2, -1) / math.sqrt(d_k)  # (batch, h, queries, keys)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)  # (batch, h, queries, keys)
    weights = torch.softmax(scores, dim=-1)  # (batch, h, queries, keys)
    return weights @ value  # (batch, h, queries, d_k)


class MultiHeadAttentionBlock(nn.Module):
    """h parallel attentions, each over its own d_k numbers, joined by a linear layer."""

    def __init__(self, d_model: int, h: int):
        super().__init__()
        self.h, self.d_k = h, d_model // h
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.h, self.d_k).transpose(1, 2)  # (batch, h, seq, d_k)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        x = attention(self.heads(self.w_q(q)), self.heads(self.w_k(k)), self.heads(self.w_v(v)), mask)
        x = x.transpose(1, 2).flatten(2)  # (batch, queries, d_model)
        return self.w_o(x)  # (batch, queries, d_model)


# --- 3. around attention --------------------------------------------------------------------------------------
class LayerNormalization(nn.Module):
    """Scale every vector to mean 0 and standard deviation 1, then apply the learned alpha and bias."""

    def __init__(self, features: int):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=-1, keepdim=True)  # (batch, seq, 1)
        std = x.std(dim=-1, keepdim=True, unbiased=False)  # (batch, seq, 1)
        return self.alpha * (x - mean) / torch.sqrt(std**2 + 1e-6) + self.bias  # (batch, seq, d_model)


class FeedForwardBlock(nn.Module):
    """Two linear layers with a ReLU between them, applied to each position alone."""

    def __init__(self, d_model: int, d_ff: int, dropout: float):
        super().__init__()
        self.linear_1, self.linear_2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.relu(self.linear_1(x))  # (batch, seq, d_ff)
        return self.linear_2(self.dropout(wide))  # (batch, seq, d_model)


class ResidualConnection(nn.Module):
    """x + sublayer(x). The paper normalizes after the sublayer; the course, and most later models, before it."""

    def __init__(self, d_model: int, dropout: float):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.norm = LayerNormalization(d_model)

    def forward(self, x: Tensor, sublayer) -> Tensor:
        return x + self.dropout(sublayer(self.norm(x)))  # (batch, seq, d_model)


# --- 4. encoder and decoder -----------------------------------------------------------------------------------
class Block(nn.Module):
    """Self-attention, in the decoder also cross-attention to the source, then the feed-forward block."""

    def __init__(self, d_model: int, h: int, d_ff: int, dropout: float, decodes: bool):
        super().__init__()
        self.self_attention_block = MultiHeadAttentionBlock(d_model, h)
        self.cross_attention_block = MultiHeadAttentionBlock(d_model, h) if decodes else None
        self.feed_forward_block = FeedForwardBlock(d_model, d_ff, dropout)
        self.residual_connections = nn.ModuleList(ResidualConnection(d_model, dropout) for _ in range(2 + decodes))

    def forward(self, x: Tensor, mask: Tensor, source: Tensor | None = None, src_mask: Tensor | None = None) -> Tensor:
        x = self.residual_connections[0](x, lambda x: self.self_attention_block(x, x, x, mask))
        if source is not None:
            x = self.residual_connections[1](x, lambda x: self.cross_attention_block(x, source, source, src_mask))
        return self.residual_connections[-1](x, self.feed_forward_block)  # (batch, seq, d_model)


class Stack(nn.Module):
    """N blocks in sequence, then a final normalization, because the last residual sum is not normalized."""

    def __init__(self, blocks: list[Block], d_model: int):
        super().__init__()
        self.layers, self.norm = nn.ModuleList(blocks), LayerNormalization(d_model)

    def forward(self, x: Tensor, *masks_and_source: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, *masks_and_source)  # (batch, seq, d_model)
        return self.norm(x)  # (batch, seq, d_model)


class Transformer(nn.Module):
    """Map the ids of source and target to the scores of the next word at each position of the target."""

    def __init__(self, src_vocab: int, tgt_vocab: int, seq: int, d_model=128, N=2, h=4, d_ff=512, dropout=0.1):
        super().__init__()
        self.src_embed, self.tgt_embed = InputEmbeddings(d_model, src_vocab), InputEmbeddings(d_model, tgt_vocab)
        self.src_pos, self.tgt_pos = (PositionalEncoding(d_model, seq, dropout) for _ in range(2))
        self.encoder = Stack([Block(d_model, h, d_ff, dropout, decodes=False) for _ in range(N)], d_model)
        self.decoder = Stack([Block(d_model, h, d_ff, dropout, decodes=True) for _ in range(N)], d_model)
        self.projection_layer = nn.Sequential(OrderedDict(proj=nn.Linear(d_model, tgt_vocab)))
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        source = self.encoder(self.src_pos(self.src_embed(src)), src_mask)  # (batch, source, d_model)
        x = self.decoder(self.tgt_pos(self.tgt_embed(tgt)), tgt_mask, source, src_mask)  # (batch, target, d_model)
        return self.projection_layer(x)  # (batch, target, vocabulary)


# --- 5. learning ----------------------------------------------------------------------------------------------
def teacher_forcing(targets: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return the decoder input and the label, both int64: the same words, shifted by one position."""
    longest = max(len(ids) for ids in targets) + 1
    decoder_input = [[SOS, *ids] + [PAD] * (longest - 1 - len(ids)) for ids in targets]
    label = [[*ids, EOS] + [PAD] * (longest - 1 - len(ids)) for ids in targets]
    return torch.tensor(decoder_input), torch.tensor(label)  # (batch, target) (batch, target)


def learning_rate(step: int, d_model: int, warmup: int) -> float:
    """Return the learning rate of a step, counted from 1: it rises for `warmup` steps, then falls (section 5.3)."""
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def smoothed_loss(scores: Tensor, label: Tensor, smoothing: float = 0.1) -> Tensor:
    """Return the mean cross-entropy of the real words, with label smoothing over the vocabulary."""
    log_p = torch.log_softmax(scores, dim=-1)  # (batch, target, vocabulary)
    of_label = -log_p.gather(-1, label[:, :, None]).squeeze(-1)  # (batch, target)
    of_all = -log_p.mean(dim=-1)  # (batch, target)
    loss = (1 - smoothing) * of_label + smoothing * of_all  # (batch, target)
    return loss[label != PAD].mean()  # ()


def train_model(model: Transformer, batches, d_model: int, warmup: int = 400) -> None:
    """Train on batches of (sources, targets), each a list of sentences as ids."""
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    for step, (sources, targets) in enumerate(batches, start=1):
        src = nn.utils.rnn.pad_sequence([torch.tensor([SOS, *ids, EOS]) for ids in sources], True, PAD)
        tgt, label = teacher_forcing(targets)
        scores = model(src, tgt, padding_mask(src), causal_mask(tgt.shape[1]))  # (batch, target, vocabulary)
        loss = smoothed_loss(scores, label)  # ()
        optimizer.param_groups[0]["lr"] = learning_rate(step, d_model, warmup)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 200 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


@torch.no_grad()
def greedy_decode(model: Transformer, source: list[int], longest: int) -> list[int]:
    """Return the translation by greedy search: take the most probable next word until the sentence ends."""
    src = torch.tensor([[SOS, *source, EOS]])  # (1, source)
    ids = [SOS]
    while len(ids) < longest and ids[-1] != EOS:
        scores = model(src, torch.tensor([ids]), padding_mask(src), causal_mask(len(ids)))[0, -1]  # (vocabulary)
        scores[[PAD, SOS]] = -math.inf  # never a next word
        ids.append(scores.argmax().item())
    return ids[1:-1] if ids[-1] == EOS else ids[1:]


def reversed_letters(draw: random.Random, count: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return sentences of 4 to 12 letters, numbered from 3 on, and the same sentences backwards."""
    sources = [draw.choices(range(3, 29), k=draw.randint(4, 12)) for _ in range(count)]
    return sources, [ids[::-1] for ids in sources]


if __name__ == "__main__":
    draw = random.Random(0)
    model = Transformer(src_vocab=29, tgt_vocab=29, seq=14)
    train_model(model, (reversed_letters(draw, 64) for _ in range(2000)), d_model=128)
    model.eval()
    right = [greedy_decode(model, s, 14) == t for s, t in zip(*reversed_letters(draw, 200), strict=True)]
    print(f"{sum(right) / 2:.1f} % of 200 new sentences are reversed without an error")
