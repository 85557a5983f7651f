"""Where translators forget: accuracy over length, gradients over distance, time over length."""

from __future__ import annotations

import random
import string
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from services.ws_mdl.practice.lstm.data import Sentences
from services.ws_mdl.practice.lstm.model import open_forget_gates
from services.ws_mdl.transformer.dataset import Example, make_batch
from services.ws_mdl.transformer.decode import translate
from services.ws_mdl.transformer.loss import TranslationLoss
from services.ws_mdl.transformer.model import MultiHeadAttentionBlock

HALF = 0.5


# --- accuracy over length -----------------------------------------------------------------------------------


def exact_by_length(
    model: nn.Module, data: Sentences, seq: int, lengths: Iterable[int], count: int, seed: int = 1
) -> dict[int, float]:
    """Returns, for each length, the share (0 to 1) of `count` new random sequences that come out reversed."""
    draw = random.Random(seed)
    shares = {}
    for length in lengths:
        letters = [draw.choices(string.ascii_lowercase, k=length) for _ in range(count)]
        sources = [" ".join(sequence) for sequence in letters]
        found = translate(model, sources, data.tokenizer_src, data.tokenizer_tgt, seq=seq)
        right = sum(text == " ".join(reversed(sequence)) for text, sequence in zip(found, letters, strict=True))
        shares[length] = right / count
    return shares


def forgets_at(shares: Mapping[int, float]) -> int | None:
    """Returns the first length of which less than half come out right; None where there is none."""
    return next((length for length in sorted(shares) if shares[length] < HALF), None)


def told(shares: Mapping[int, float]) -> str:
    """Returns shares by length as lines for a terminal."""
    table = "  ".join(f"{length}: {100 * share:.0f} %" for length, share in shares.items())
    short = forgets_at(shares)
    below = f"below half from {short} letters on" if short else "never below half"
    return f"reversed right, by length: {table}; {below}"


@torch.inference_mode()
def loss_by_length(model: nn.Module, data: Sentences, bounds: Sequence[int]) -> dict[str, tuple[int, float]]:
    """Returns, for held-out pairs by the length of their target, how many they are and their mean nats per word.

    bounds: the least numbers of tokens of each group, [EOS] not counted, as in (1, 5, 9): 1 to 4, 5 to 8, 9 and more.
    """
    lengths = torch.tensor([target for _, target in data.held.lengths()]) - 1  # they count [SOS] or [EOS]
    loss_of, found = TranslationLoss(model).eval(), {}
    for least, over in zip(bounds, [*bounds[1:], None], strict=True):
        chosen = ((lengths >= least) & (lengths < (over or torch.inf))).nonzero().squeeze(1)
        nats = count = 0.0
        for part in chosen.split(64) if len(chosen) else ():
            batch = make_batch([data.held[i] for i in part.tolist()], *data.specials)
            nats, count = nats + loss_of(*batch, smoothing=0.0).item(), count + batch.real.numel()
        name = f"{least} to {over - 1}" if over else f"{least} and more"
        found[name] = len(chosen), nats / count if count else float("nan")
    return found


# --- gradients over distance --------------------------------------------------------------------------------


def gradient_by_distance(read: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Returns ‖∂ last output / ∂ x‖ by distance, float [seq]: entry k is of the word k places before the last.

    read: x [batch, seq, d_model] → [batch, seq, hidden]. The norm is of the gradient of the last output's product with
    a drawn direction, as backpropagation computes it, and its mean is over the batch.
    """
    x = x.detach().requires_grad_()
    last = read(x)[:, -1]  # (batch, hidden)
    direction = torch.randn(last.shape, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad((last * direction).sum(), x)
    return gradient.norm(dim=-1).mean(dim=0).flip(0)


def fresh_gradients(d_model: int, seq: int) -> dict[str, Tensor]:
    """Returns `gradient_by_distance` of what has learned nothing yet: recurrent layers, and self-attention."""
    torch.manual_seed(0)
    x = torch.randn(8, seq, d_model)
    plain, closed = (layer(d_model, d_model, batch_first=True) for layer in (nn.RNN, nn.LSTM))
    opened = nn.LSTM(d_model, d_model, batch_first=True)
    open_forget_gates(opened)
    layers = {"tanh network": plain, "LSTM": closed, "LSTM, forget bias 1": opened}
    found = {name: gradient_by_distance(lambda x, layer=layer: layer(x)[0], x) for name, layer in layers.items()}
    return {**found, "self-attention": gradient_by_distance(readers(d_model)["attention"], x)}


def gradient_to_matching_letter(model: nn.Module, data: Sentences, length: int, count: int, seed: int = 2) -> Tensor:
    """Returns, for each place i of a reversed sequence, ‖∂ score(letter i) / ∂ the source's letter that it copies‖.

    Float [length], a mean over `count` random sequences. Scores, not log probabilities: these hardly change where the
    model is sure.
    """
    draw = random.Random(seed)
    letters = [draw.choices(string.ascii_lowercase, k=length) for _ in range(count)]
    examples = [
        Example(data.tokenizer_src.encode(" ".join(row)).ids, data.tokenizer_tgt.encode(" ".join(row[::-1])).ids)
        for row in letters
    ]
    batch = make_batch(examples, *data.specials)
    embedded: list[Tensor] = []
    hook = model.src_embed.register_forward_hook(lambda module, args, output: embedded.append(output))
    try:
        scores = model(batch.encoder_input, batch.decoder_input, batch.encoder_mask, batch.decoder_mask)
    finally:
        hook.remove()
    chosen = scores.gather(-1, batch.label[..., None]).squeeze(-1)  # (count, length + 1)
    norms = []
    for i in range(length):
        (gradient,) = torch.autograd.grad(chosen[:, i].sum(), embedded[0], retain_graph=True)
        norms.append(gradient[:, length - i].norm(dim=-1).mean())  # [SOS] comes first, then letter length - 1 - i
    return torch.stack(norms).detach()


# --- time over length ---------------------------------------------------------------------------------------


def readers(d_model: int, h: int = 4) -> dict[str, Callable[[Tensor], Tensor]]:
    """Returns what reads a whole sentence at that width: an LSTM, and self-attention as the paper has it."""
    torch.manual_seed(0)
    lstm, block = nn.LSTM(d_model, d_model, batch_first=True), MultiHeadAttentionBlock(d_model, h, 0.0)
    return {"lstm": lambda x: lstm(x)[0], "attention": lambda x: block(x, x, x)}


def seconds_by_length(
    read: Callable[[Tensor], Tensor], lengths: Iterable[int], d_model: int, rounds: int = 3
) -> dict[int, float]:
    """Returns the CPU seconds of reading one sentence and going back through it, by its length; the least of rounds."""
    found = {}
    for length in lengths:
        x = torch.randn(1, length, d_model, requires_grad=True)
        times = []
        for _ in range(rounds):
            started = time.process_time()
            read(x).sum().backward()
            times.append(time.process_time() - started)
        found[length] = min(times)
    return found


def exponent(seconds: Mapping[int, float]) -> float:
    """Returns p of time ∝ length^p between the two longest lengths."""
    short, long = sorted(seconds)[-2:]
    return float(torch.tensor(seconds[long] / seconds[short]).log() / torch.tensor(long / short).log())
