"""LSTMs without and with attention, and lab 1's Transformer: the same data, the same CPU seconds, one thread each."""

from __future__ import annotations

import random
import string
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from bench.common import figure
from services.ws_mdl.epochs import train_epoch
from services.ws_mdl.practice import lengths
from services.ws_mdl.practice.lstm import Sentences, Training, get_training
from services.ws_mdl.practice.settings import LSTM_MODELS, PracticeSettings
from services.ws_mdl.practice.settings import Lstm as Config
from services.ws_mdl.practice.training import PracticeRun, format_figures
from services.ws_mdl.transformer.dataset import Example, make_batch
from services.ws_mdl.transformer.model import TranslationLoss
from vla_common.volume import Volume
from vla_modelkit.training.machine import Machine
from vla_modelkit.training.stopping import StopSignal

CPU = Machine(torch.device("cpu"))
RATES = {"attention": 2e-3, "plain": 2e-3, "transformer": 1e-3}
REVERSE_CPU_S, TRANSLATION_CPU_S = 60.0, 240.0
TRANSLATION_SEQ = 20  # tokens at most: the budget is short
LEAST_LENGTHS = {"attention": 13, "plain": 8, "transformer": 9}  # where it may fall below half at the earliest
MOST_NATS = {"attention": 3.5, "plain": 3.5, "transformer": 2.5}
GROUPS = (1, 5, 9, 13)  # target words, from
TRIAL_STEPS = 15  # from which it is known how many epochs a budget has
SHORT, LONGEST, COUNT = range(4, 9), 30, 100
DISTANCES, TIMED = (1, 10, 50, 99), (128, 256, 512, 1024, 2048)
WIDTH = 64


def measure_lstm(quick: bool) -> list[bool]:
    """Prints all of the section's tables; returns whether each figure meets its target."""
    with one_thread():
        reached = accuracy_over_length(quick)
        reached += translation(quick)
        gradients()
        return [*reached, *time_over_length(quick)]


@contextmanager
def one_thread() -> Iterator[None]:
    """Computes on one core within it: then CPU seconds are those that a quiet machine would take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def trained_for(
    config: PracticeSettings, begin: Callable[[PracticeSettings], PracticeRun], cpu_s: float, quick: bool
) -> PracticeRun:
    """Returns a run of whole epochs that take about so many CPU seconds; the rate falls to 0 over them."""
    trial = begin(config)
    index = torch.arange(config.batch_size * TRIAL_STEPS) % len(trial.data)
    started = time.process_time()
    for part in index.split(config.batch_size):
        trial.step(part)
    per_epoch = (time.process_time() - started) / TRIAL_STEPS * trial.batches_per_epoch
    run = begin(replace(config, epochs=1 if quick else max(1, round(cpu_s / per_epoch))))
    started, wall = time.process_time(), time.monotonic()
    with StopSignal() as stop:
        while run.epoch < run.config.epochs and not stop.asked:
            train_epoch(run, stop)
    spent = f"{time.process_time() - started:.0f} CPU s, {time.monotonic() - wall:.0f} s"
    print(
        f"{config.name}: {run.about}, {run.config.epochs} epochs, {spent}; {format_figures(run.measure())}", flush=True
    )
    return run


def _config(model: str, corpus: str) -> Config:
    seq = {"seq": TRANSLATION_SEQ} if corpus != "reverse" else {}
    return Config(corpus=corpus, model=model, lrate=RATES[model], device="cpu", **seq)


def _runs(corpus: str, cpu_s: float, quick: bool) -> Iterator[tuple[str, Training]]:
    """Yields each model trained on a corpus; nothing of them is kept."""
    for model in LSTM_MODELS:
        config = _config(model, corpus)
        yield model, trained_for(config, lambda config: get_training(config, CPU, Volume()), cpu_s, quick)


def accuracy_over_length(quick: bool) -> list[bool]:
    """Reverses letters: the share of new sequences that come out right, by length, and where it falls below half."""
    print(f"\nreversing letters, {REVERSE_CPU_S:.0f} CPU s each, learned from 4 to 12 letters")
    met = []
    for model, run in _runs("reverse", REVERSE_CPU_S, quick):
        letters = range(4, 14 if quick else LONGEST + 1)
        count = 20 if quick else COUNT
        shares = lengths.exact_by_length(run.averaged, *run.data.tokenizers, run.config.seq, letters, count)
        print(f"  {lengths.format_shares(shares)}")
        norms = gradient_to_matching_letter(run.averaged, run.data, 12, 20)
        print(f"  gradient from letter i of 12 to the one it copies: {', '.join(f'{norm:.2f}' for norm in norms)}")
        short = 100 * sum(shares[length] for length in SHORT) / len(SHORT)
        if model == "attention":
            met.append(figure("practice.lstm_reverse_upto_8", short, "%", ">=95"))
        else:
            print(f"  up to 8 letters: {short:.1f} %")
        below = lengths.forgets_at(shares) or LONGEST + 1
        met.append(figure(f"practice.lstm_{model}_below_half_at", below, "letters", f">={LEAST_LENGTHS[model]}"))
    return met


def translation(quick: bool) -> list[bool]:
    """Translates Home Assistant's screens; prints what each comes to, and what a word costs by length."""
    print(f"\nEnglish to Italian, {TRANSLATION_CPU_S:.0f} CPU s each, sentences of up to {TRANSLATION_SEQ} tokens")
    met = []
    for model, run in _runs("default", TRANSLATION_CPU_S, quick):
        by_length = loss_by_length(run.averaged, run.data, GROUPS)
        table = "  ".join(f"{name}: {loss:.2f} ({count})" for name, (count, loss) in by_length.items())
        print(f"  nats per word by target words (sentences): {table}", flush=True)
        met.append(figure(f"practice.italian_{model}", run.measure()["loss"], "nats/word", f"<={MOST_NATS[model]}"))
    return met


def gradients() -> None:
    """Prints how much of a gradient is left after so many words, of networks that have learned nothing."""
    print("\n‖∂ last output / ∂ word‖ by distance, as shares of distance 0")
    for name, norms in lengths.fresh_gradients(WIDTH, DISTANCES[-1] + 1).items():
        print(f"  {name:<28}" + "  ".join(f"{k}: {norms[k] / norms[0]:.1e}" for k in DISTANCES))


def time_over_length(quick: bool) -> list[bool]:
    """Times one sentence forwards and backwards, by its length."""
    print(f"\nCPU ms for one sentence of n words, forwards and backwards, {WIDTH} numbers a word")
    slopes = {}
    for name, read in lengths.readers(WIDTH).items():
        seconds = lengths.seconds_by_length(read, TIMED[:3] if quick else TIMED, WIDTH)
        slopes[name] = lengths.exponent(seconds)
        print(
            f"  {name:<10}" + "  ".join(f"{n}: {1e3 * s:.1f}" for n, s in seconds.items()) + f"  n^{slopes[name]:.2f}"
        )
    return [
        figure("practice.lstm_time_exponent", slopes["lstm"], "of n", "<=1.3"),
        figure("practice.attention_time_exponent", slopes["attention"], "of n", ">=1.5"),
    ]


# --- what is measured --------------------------------------------------------------------------------------


@torch.inference_mode()
def loss_by_length(model: nn.Module, data: Sentences, bounds: Sequence[int]) -> dict[str, tuple[int, float]]:
    """Return, for held-out pairs by the length of their target, how many they are and their mean nats per word.

    bounds: the least numbers of tokens of each group, [EOS] not counted, as in (1, 5, 9): 1 to 4, 5 to 8, 9 and more.
    """
    counts = torch.tensor([target for _, target in data.held.lengths()]) - 1  # they count [SOS] or [EOS]
    loss_of, result = TranslationLoss(model).eval(), {}
    for least, over in zip(bounds, [*bounds[1:], None], strict=True):
        chosen = ((counts >= least) & (counts < (over or torch.inf))).nonzero().squeeze(1)
        nats = count = 0.0
        for part in chosen.split(64) if len(chosen) else ():
            batch = make_batch([data.held[i] for i in part.tolist()], *data.specials)
            nats, count = nats + loss_of(*batch, smoothing=0.0).item(), count + batch.real.numel()
        name = f"{least} to {over - 1}" if over else f"{least} and more"
        result[name] = len(chosen), nats / count if count else float("nan")
    return result


def gradient_to_matching_letter(model: nn.Module, data: Sentences, length: int, count: int, seed: int = 2) -> Tensor:
    """Return, for each place i of a reversed sequence, ‖∂ score(letter i) / ∂ the source's letter that it copies‖.

    Float [length], a mean over `count` random sequences. Scores, not log probabilities: these hardly change where the
    model is sure.
    """
    draw = random.Random(seed)
    letters = [draw.choices(string.ascii_lowercase, k=length) for _ in range(count)]
    source, target = data.tokenizers
    examples = [Example(source.encode(" ".join(row)).ids, target.encode(" ".join(row[::-1])).ids) for row in letters]
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
