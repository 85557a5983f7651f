"""Plots: attention maps, positional encodings, masks, the learning curve."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib import font_manager
from matplotlib.figure import Figure
from tokenizers import Tokenizer
from torch import Tensor

from services.ws_mdl.transformer.dataset import Special, causal_mask, padding_mask
from services.ws_mdl.transformer.model import MultiHeadAttentionBlock, Transformer


class AttentionMaps(NamedTuple):
    """Attention weights of one sentence, float [layers, heads, queries, keys]; rows sum to 1."""

    encoder: Tensor  # source to source
    decoder: Tensor  # target to earlier target
    cross: Tensor  # target to source


@contextmanager
def record_attention(model: Transformer) -> Iterator[None]:
    """Make attention blocks store their weights in `attention_scores` inside the block."""
    blocks = [module for module in model.modules() if isinstance(module, MultiHeadAttentionBlock)]
    try:
        for block in blocks:
            block.need_weights = True
        yield
    finally:
        for block in blocks:
            block.need_weights, block.attention_scores = False, None


@torch.inference_mode()
def attention_maps(model: Transformer, source: Tensor, target: Tensor) -> AttentionMaps:
    """Return the attention maps for source ids [1, seq] and target ids [1, seq]."""
    was_training = model.training
    model.eval()
    with record_attention(model):
        model.decode(model.encode(source, None), None, target, causal_mask(target.shape[1]).to(target.device))
        encoder = [layer.self_attention_block for layer in model.encoder.layers]
        decoder = [layer.self_attention_block for layer in model.decoder.layers]
        cross = [layer.cross_attention_block for layer in model.decoder.layers]
        maps = [torch.cat([b.attention_scores for b in part]).float().cpu() for part in (encoder, decoder, cross)]
    model.train(was_training)
    return AttentionMaps(*maps)


class View(NamedTuple):
    """A sentence and its translation as tokens, and the attention maps."""

    maps: AttentionMaps
    source: list[str]
    target: list[str]

    def kinds(self) -> dict[str, tuple[Tensor, list[str], list[str]]]:
        """Return weights, queries and keys of each kind of attention."""
        return {
            "cross": (self.maps.cross, self.target, self.source),
            "encoder": (self.maps.encoder, self.source, self.source),
            "decoder": (self.maps.decoder, self.target, ["[SOS]", *self.target[:-1]]),
        }


def look(
    model: Transformer, source: str, target: str, tokenizer_src: Tokenizer, tokenizer_tgt: Tokenizer, limit: int = 40
) -> View:
    """Compute the attention maps for `source` and `target`, with at most `limit` tokens each.

    Rows of the target's maps are labelled with the generated token; the query is the token before it.
    """
    device = next(model.parameters()).device
    src, tgt = tokenizer_src.encode(source), tokenizer_tgt.encode(target)
    special_src, special_tgt = Special.of(tokenizer_src), Special.of(tokenizer_tgt)
    source_ids = torch.tensor([[special_src.sos, *src.ids[:limit], special_src.eos]], device=device)
    target_ids = torch.tensor([[special_tgt.sos, *tgt.ids[:limit]]], device=device)
    maps = attention_maps(model, source_ids, target_ids)
    return View(maps, ["[SOS]", *src.tokens[:limit], "[EOS]"], [*tgt.tokens[:limit], "[EOS]"])


def fonts() -> list[str]:
    """Return matplotlib's font family, and a Korean one if it is installed."""
    if spec := importlib.util.find_spec("koreanize_matplotlib"):  # not imported, because that changes settings
        path = Path(spec.submodule_search_locations[0]) / "fonts" / "NanumGothic.ttf"
        if "NanumGothic" not in {font.name for font in font_manager.fontManager.ttflist}:
            font_manager.fontManager.addfont(path)
        return ["DejaVu Sans", "NanumGothic"]
    return ["DejaVu Sans"]


def plot_attention(weights: Tensor, queries: Sequence[str], keys: Sequence[str], title: str) -> Figure:
    """Plot heat maps of weights [layers, heads, queries, keys]: a row per layer, a column per head."""
    layers, heads = weights.shape[:2]
    size = 0.28 * max(len(queries), len(keys), 4) + 0.4
    figure = Figure(figsize=(size * heads + 1, size * layers + 1), layout="constrained")
    grid = figure.subplots(layers, heads, squeeze=False)
    family = fonts()
    for layer, row in enumerate(grid):
        for head, axes in enumerate(row):
            axes.imshow(weights[layer, head].numpy(), vmin=0, vmax=1, cmap="viridis", aspect="auto")
            axes.set_title(f"layer {layer}, head {head}", fontsize=8)
            axes.set_xticks(
                range(len(keys)), keys if layer == layers - 1 else [], rotation=90, fontsize=7, family=family
            )
            axes.set_yticks(range(len(queries)), queries if head == 0 else [], fontsize=7, family=family)
    figure.suptitle(title, family=family)
    return figure


def plot_positions(table: Tensor) -> Figure:
    """Plot a positional encoding [seq, d_model] and the cosine similarity of positions."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    image = left.imshow(table.numpy(), cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
    left.set(title="positional encoding", xlabel="dimension", ylabel="position")
    figure.colorbar(image, ax=left)
    unit = torch.nn.functional.normalize(table, dim=-1)
    image = right.imshow((unit @ unit.T).numpy(), cmap="viridis")
    right.set(title="cosine similarity of positions", xlabel="position", ylabel="position")
    figure.colorbar(image, ax=right)
    return figure


def plot_masks(source: Tensor, pad: int, target_len: int) -> Figure:
    """Plot the encoder's mask for ids [batch, seq] and the decoder's mask."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.imshow(padding_mask(source, pad)[:, 0, 0].numpy(), cmap="gray", vmin=0, vmax=1, aspect="auto")
    left.set(title="encoder_mask: padding is masked", xlabel="source word", ylabel="sentence of the batch")
    right.imshow(causal_mask(target_len)[0].numpy(), cmap="gray", vmin=0, vmax=1)
    right.set(title="decoder_mask: causal", xlabel="key", ylabel="query")
    return figure


def plot_curve(history: Sequence[dict[str, Any]], title: str, points: Sequence[dict[str, float]] = ()) -> Figure:
    """Plot losses and BLEU over training time. history, points: see `train.Trainer`; older runs have no points."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    minutes = [point["seconds"] / 60 for point in history]
    if points:
        learned = [(point["seconds"] / 60, point["loss"]) for point in points]
    else:
        learned = [(at, point["train_loss"]) for at, point in zip(minutes, history, strict=True)]
    axes.plot(*zip(*learned, strict=True), label="training loss (smoothed labels)", color="C7")
    axes.plot(minutes, [point["loss"] for point in history], label="validation loss", color="C0", marker=".")
    axes.set(xlabel="minutes of training", ylabel="loss per word", title=title)
    right = axes.twinx()
    right.plot(minutes, [100 * point["bleu"] for point in history], label="validation BLEU", color="C1", marker=".")
    right.set(ylabel="BLEU", ylim=(0, None))
    figure.legend(loc="outside lower center", ncols=3)
    axes.grid(alpha=0.3)
    return figure


def save(figure: Figure, path: Path) -> Path:
    """Save a figure as PNG; return its path."""
    figure.savefig(path, dpi=110)
    return path
