"""Small things of the reading, each a function that gives numbers; the notebook Practice_SmallThings shows them all.

Everything comes from lab 1's own blocks where it has one. docs/practice.md has the numbers; a test holds each.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.ws_mdl.practice.blocks import build_stack
from services.ws_mdl.practice.lstm import Seq2Seq
from services.ws_mdl.transformer.dataset import Batch, Example, Special, make_batch
from services.ws_mdl.transformer.model import (
    InputEmbeddings,
    LayerNormalization,
    PositionalEncoding,
    build_transformer,
)


def norm_example() -> Tensor:
    """Return 3 sentences of 3 words with 4 features, [3, 3, 4]; the third sentence is ten times the first."""
    first = torch.tensor([[1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 8.0], [0.0, 0.0, 4.0, 4.0]])
    return torch.stack([first, first.flip(-1), 10 * first])


def layer_norm(x: Tensor) -> Tensor:
    """Return x with mean 0 and variance 1 over each word's own features: 9 means for [3, 3, 4]."""
    return LayerNormalization(x.shape[-1])(x).detach()


def batch_norm(x: Tensor) -> Tensor:
    """Return x with mean 0 and variance 1 of each feature over all words of the batch: 4 means for [3, 3, 4]."""
    return nn.BatchNorm1d(x.shape[-1])(x.transpose(1, 2)).transpose(1, 2).detach()  # torch has features before words


def positions_by_hand(seq: int, d_model: int) -> list[list[float]]:
    """Return the paper's table with a pocket calculator's functions only, one entry at a time."""
    return [
        [(math.cos if j % 2 else math.sin)(p / 10000 ** ((j - j % 2) / d_model)) for j in range(d_model)]
        for p in range(seq)
    ]


# --- tokens through an embedding ----------------------------------------------------------------------------

TOKENS = (7, 9, 3, 8, 6)


def embedding_example(vocab: int = 10, d_model: int = 4) -> tuple[InputEmbeddings, Tensor]:
    """Return a table in which row i is i, i + 0.1, i + 0.2 … and the tokens [1, 5] that go through it."""
    table = InputEmbeddings(d_model, vocab)
    with torch.no_grad():
        table.embedding.weight.copy_(torch.arange(vocab)[:, None] + 0.1 * torch.arange(d_model))
    return table, torch.tensor([TOKENS])


# --- teacher forcing against free running -------------------------------------------------------------------

SPECIAL = Special(pad=0, sos=1, eos=2)
FIRST = 3  # of ten digits' ids


def digits_backwards(count: int, length: int, generator: torch.Generator) -> Batch:
    """Return random rows of digits, and as labels the same rows backwards."""
    rows = torch.randint(FIRST, FIRST + 10, (count, length), generator=generator).tolist()
    return make_batch([Example(row, row[::-1]) for row in rows], SPECIAL, SPECIAL)


class Accuracy(NamedTuple):
    """Shares of right words (0 to 1): with the true words before them, with the model's own, and of whole rows."""

    forced: float
    free: float
    rows: float


def free_run(model: Seq2Seq, batch: Batch) -> Tensor:
    """Return the scores of each target position's word where the model reads its own words, not the true ones."""
    source, cache = model.encode(batch.encoder_input, batch.encoder_mask), model.new_cache()
    word, scores = batch.decoder_input[:, :1], []
    for _ in range(batch.label.shape[1]):
        scores.append(model.project(model.decode(source, batch.encoder_mask, word, cache=cache)))
        word = scores[-1].argmax(dim=-1)
    return torch.cat(scores, dim=1)


def taught(forced: bool, steps: int, length: int = 6, hidden: int = 48, seed: int = 0) -> Seq2Seq:
    """Train an LSTM without attention to write digits backwards. forced: it reads the true words, else its own."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Seq2Seq(FIRST + 10, FIRST + 10, 16, hidden, 0.0, attention=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        batch = digits_backwards(64, length, generator)
        scores = model(*batch[:2], batch.encoder_mask) if forced else free_run(model, batch)
        loss = F.cross_entropy(scores.flatten(0, 1), batch.label.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


@torch.no_grad()
def forced_and_free(model: Seq2Seq, length: int = 6, count: int = 500, seed: int = 1) -> Accuracy:
    """Return how often the model is right on new rows when it is forced, and when it runs free."""
    batch = digits_backwards(count, length, torch.Generator().manual_seed(seed))
    forced = model(*batch[:2], batch.encoder_mask).argmax(dim=-1) == batch.label
    free = free_run(model, batch).argmax(dim=-1) == batch.label
    return Accuracy(forced.float().mean().item(), free.float().mean().item(), free.all(dim=1).float().mean().item())


def smoothed_loss(probability: float, vocab: int, smoothing: float) -> float:
    """Return the cross-entropy in nats where the right word has that probability and all others share the rest.

    It is least at 1 - ε + ε / vocab for a smoothing of ε.
    """
    logits = torch.full((1, vocab), math.log((1 - probability) / (vocab - 1)), dtype=torch.float64)
    logits[0, 0] = math.log(probability)
    return F.cross_entropy(logits, torch.tensor([0]), label_smoothing=smoothing).item()


@torch.no_grad()
def permutation_differences(positions: bool, seq: int = 6, d_model: int = 16) -> tuple[float, float]:
    """Return how much reordering a sentence changes: its words' vectors (0: equivariant), their mean (0: invariant)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder = build_stack(d_model, 1, 2, 32, 0.0, seq, activation="relu").eval()
    add_positions = PositionalEncoding(d_model, seq, 0.0)
    x = torch.randn(1, seq, d_model, generator=torch.Generator().manual_seed(0))
    order = torch.tensor([3, 0, 5, 1, 4, 2])

    def read(x: Tensor) -> Tensor:
        return encoder(add_positions(x) if positions else x, None)

    straight, mixed = read(x), read(x[:, order])
    word_difference = (mixed - straight[:, order]).abs().max()
    return word_difference.item(), (mixed.mean(dim=1) - straight.mean(dim=1)).abs().max().item()


def product_by_loops(a: Tensor, b: Tensor) -> tuple[Tensor, int]:
    """Return a [n, m] · b [m, k] by its definition, and the number of multiplications: n · m · k."""
    (n, m), k = a.shape, b.shape[1]
    result = torch.zeros(n, k, dtype=a.dtype)
    for i in range(n):
        for j in range(k):
            for inner in range(m):
                result[i, j] += a[i, inner] * b[inner, j]
    return result, n * m * k


def attention_products(seq: int, d_k: int) -> dict[str, int]:
    """Return the multiplications of Q Kᵀ V in both orders; with a softmax between them only the first is possible."""
    return {"(Q Kᵀ) V": 2 * seq * seq * d_k, "Q (Kᵀ V)": 2 * seq * d_k * d_k}


# --- parameter counts ---------------------------------------------------------------------------------------

PAPERS = {"Transformer base": 65e6, "ViT-B/16": 86e6, "BERT base": 110e6}
WORD_PIECES, BERT_PIECES, BERT_SEQ = 37_000, 30_522, 512  # of the papers' English-German, BERT's English
VIT_PATCHES, VIT_PATCH, VIT_CLASSES = 14 * 14, 16, 1000


def count(*modules: nn.Module) -> int:
    """Return how many different weights modules have; one that two share counts once."""
    return sum(weight.numel() for weight in {id(w): w for m in modules for w in m.parameters()}.values())


def parameter_counts() -> dict[str, int]:
    """Return the counts of the papers' models made of our blocks, on the device "meta", which takes no memory.

    Our attention has no biases. Transformer: one table for source, target and projection, as in the paper.
    """
    with torch.device("meta"):
        base = build_transformer(WORD_PIECES, WORD_PIECES, 512, 512, tied=True)
        base.src_embed.embedding.weight = base.tgt_embed.embedding.weight
        stack = build_stack(768, 12, 12, 4 * 768, 0.0, seq=BERT_SEQ)
        vit = nn.ModuleList([nn.Linear(3 * VIT_PATCH**2, 768), nn.Linear(768, VIT_CLASSES)])
        bert = nn.ModuleList([nn.Embedding(BERT_PIECES, 768), nn.Embedding(2, 768), LayerNormalization(768)])
        pooler = nn.Linear(768, 768)
    vit_tables = (VIT_PATCHES + 1) * 768 + 768  # positions and the class token
    return {
        "Transformer base": count(base),
        "ViT-B/16": count(stack, vit) + vit_tables,
        "BERT base": count(stack, bert, pooler) + BERT_SEQ * 768,
    }
