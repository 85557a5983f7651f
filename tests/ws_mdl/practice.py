"""What the tests of the practice labs share: a small corpus, small runs, and torch's layers with our weights."""

import random
from pathlib import Path

import torch
from torch import nn

from services.ws_mdl.epochs import train_epoch
from services.ws_mdl.transformer.model import Encoder
from vla_modelkit.training.machine import choose_machine
from vla_modelkit.training.stopping import StopSignal

SMALL = {"d_model": 8, "N": 2, "h": 2, "d_ff": 16, "epochs": 2, "device": "cpu", "precision": "fp32", "warmup": 2}


def corpus(directory: Path, lines: int = 160) -> str:
    """Write sentences on things that keep their colours, and return the file's place."""
    draw, path = random.Random(0), directory / "things.txt"
    colours = {"cat": "black", "dog": "brown", "bird": "blue", "frog": "green", "fox": "red"}
    things = [draw.choice(list(colours)) for _ in range(lines)]
    text = (
        f"the {colours[one]} {one} number {at} sees {draw.choice(['me', 'you', 'us'])}" for at, one in enumerate(things)
    )
    path.write_text("\n".join(text))
    return str(path)


def trained_to_end(run, after: int | None = None) -> None:
    """Train a run to its end, or stops it after so many batches."""
    with StopSignal() as stop:

        def count(_):
            stop.requested = after is not None and run.global_step >= after

        while run.epoch < run.config.epochs and not stop.requested:
            train_epoch(run, stop, count)


def machine():
    return choose_machine("cpu", "fp32")


def torch_encoder(stack: Encoder) -> nn.TransformerEncoder:
    """Return torch.nn's encoder with a stack's weights: its attention's biases, which ours lacks, are zero."""
    block = stack.layers[0]
    d_model, h = len(block.residual_connections[0].norm.alpha), block.self_attention_block.h
    d_ff, eps = block.feed_forward_block.linear_1.out_features, stack.norm.eps
    layer = nn.TransformerEncoderLayer(
        d_model, h, d_ff, 0.0, "gelu", layer_norm_eps=eps, batch_first=True, norm_first=True
    )
    theirs = nn.TransformerEncoder(layer, len(stack.layers), nn.LayerNorm(d_model, eps), enable_nested_tensor=False)
    with torch.no_grad():
        for one, ours in zip(theirs.layers, stack.layers, strict=True):
            copy_block(ours, one.self_attn, one.norm1, one.norm2, one.linear1, one.linear2)
        copy_norm(stack.norm, theirs.norm)
    return theirs.eval()


def copy_block(ours, attention, norm1, norm2, linear1, linear2) -> None:
    """Copy a block of ours into the parts of one of torch's."""
    copy_attention(ours.self_attention_block, attention)
    for norm, way_around in zip((norm1, norm2), ours.residual_connections, strict=True):
        copy_norm(way_around.norm, norm)
    linear1.load_state_dict(ours.feed_forward_block.linear_1.state_dict())
    linear2.load_state_dict(ours.feed_forward_block.linear_2.state_dict())


@torch.no_grad()
def copy_attention(ours, theirs) -> None:
    theirs.in_proj_weight.copy_(torch.cat([ours.w_q.weight, ours.w_k.weight, ours.w_v.weight]))
    theirs.out_proj.weight.copy_(ours.w_o.weight)
    for bias in (theirs.in_proj_bias, theirs.out_proj.bias):
        bias.zero_()


@torch.no_grad()
def copy_norm(ours, theirs) -> None:
    theirs.weight.copy_(ours.alpha)
    theirs.bias.copy_(ours.bias)


@torch.no_grad()
def stirred(model: nn.Module) -> nn.Module:
    """Give every weight a part in what comes out, also norms and biases, which begin as ones and zeros."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter += 0.3 * torch.randn_like(parameter)
    return model.eval()
