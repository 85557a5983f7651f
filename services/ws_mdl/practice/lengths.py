"""Where translators forget: accuracy over length, gradients over distance, time over length."""

from __future__ import annotations

import math
import random
import string
import time
from collections.abc import Callable, Iterable, Mapping

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from services.ws_mdl.transformer.decode import translate
from services.ws_mdl.transformer.model import MultiHeadAttentionBlock


def exact_by_length(
    model: nn.Module, tokenizer_src: Tokenizer, tokenizer_tgt: Tokenizer, seq: int, lengths: Iterable[int], count: int,
    seed: int = 1,
) -> dict[int, float]:  # fmt: skip
    """Return, for each length, the share (0 to 1) of `count` new random sequences that come out reversed."""
    draw = random.Random(seed)
    shares = {}
    for length in lengths:
        letters = [draw.choices(string.ascii_lowercase, k=length) for _ in range(count)]
        sources = [" ".join(sequence) for sequence in letters]
        translations = translate(model, sources, tokenizer_src, tokenizer_tgt, seq=seq)
        right = sum(text == " ".join(reversed(sequence)) for text, sequence in zip(translations, letters, strict=True))
        shares[length] = right / count
    return shares


def format_shares(shares: Mapping[int, float]) -> str:
    """Return shares by length as a line for a terminal, with the first length below one half."""
    table = "  ".join(f"{length}: {100 * share:.0f} %" for length, share in shares.items())
    short = next((length for length in sorted(shares) if shares[length] < 0.5), None)
    below = f"below half from {short} letters on" if short else "never below half"
    return f"reversed correctly, by length: {table}; {below}"


def open_forget_gates(cell: nn.LSTM | nn.LSTMCell) -> None:
    """Set the forget gates' bias to 1, so that a fresh network keeps what it reads (Jozefowicz et al., 2015)."""
    with torch.no_grad():
        for name, bias in cell.named_parameters():
            if name.startswith("bias"):  # torch adds two biases
                bias[cell.hidden_size : 2 * cell.hidden_size] = 1.0 if name.startswith("bias_ih") else 0.0


def readers(d_model: int, h: int = 4) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return untrained layers that read a whole sentence of that width: an LSTM, and self-attention."""
    torch.manual_seed(0)
    lstm, block = nn.LSTM(d_model, d_model, batch_first=True), MultiHeadAttentionBlock(d_model, h, 0.0)
    return {"lstm": lambda x: lstm(x)[0], "attention": lambda x: block(x, x, x)}


def fresh_gradients(d_model: int, seq: int) -> dict[str, Tensor]:
    """Return `gradient_by_distance` of untrained layers: recurrent ones, and self-attention."""
    torch.manual_seed(0)
    x = torch.randn(8, seq, d_model)
    plain, closed, opened = (layer(d_model, d_model, batch_first=True) for layer in (nn.RNN, nn.LSTM, nn.LSTM))
    open_forget_gates(opened)
    return {
        "tanh network": gradient_by_distance(lambda x: plain(x)[0], x),
        "LSTM": gradient_by_distance(lambda x: closed(x)[0], x),
        "LSTM, forget bias 1": gradient_by_distance(lambda x: opened(x)[0], x),
        "self-attention": gradient_by_distance(readers(d_model)["attention"], x),
    }


def gradient_by_distance(read: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return ‖∂ last output / ∂ x‖ by distance, float [seq]: entry k is of the word k positions before the last.

    read: x [batch, seq, d_model] → [batch, seq, hidden]. The gradient is that of the last output's product with a
    random direction; its norm is averaged over the batch.
    """
    x = x.detach().requires_grad_()
    last = read(x)[:, -1]  # (batch, hidden)
    direction = torch.randn(last.shape, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad((last * direction).sum(), x)
    return gradient.norm(dim=-1).mean(dim=0).flip(0)


def seconds_by_length(
    read: Callable[[Tensor], Tensor], lengths: Iterable[int], d_model: int, rounds: int = 3
) -> dict[int, float]:
    """Return the CPU seconds of one sentence forwards and backwards, by its length; the least of the rounds."""
    seconds = {}
    for length in lengths:
        x, times = torch.randn(1, length, d_model, requires_grad=True), []
        for _ in range(rounds):
            started = time.process_time()
            read(x).sum().backward()
            times.append(time.process_time() - started)
        seconds[length] = min(times)
    return seconds


def exponent(seconds: Mapping[int, float]) -> float:
    """Return p of time ∝ length^p between the two longest lengths."""
    short, long = sorted(seconds)[-2:]
    return math.log(seconds[long] / seconds[short]) / math.log(long / short)
