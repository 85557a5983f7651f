"""The Transformer lab: training, decoding and learning, against the course's way and against nn.Transformer.

course  the course's way, written anew in its plain form: attention step by step, every sentence padded to 350 tokens,
        eight of them in a batch, float32, the loss read and the TensorBoard writer flushed at every step; translations
        one sentence at a time, every word computed from the beginning
torch   nn.Transformer between the same embeddings and projection, on the lab's own batches, same loss and optimizer
lab     services/ws_mdl/transformer as `train` and `translate` run it

All have the paper's base size (d_model 512, N 6, h 8), the default corpus, and their turns in one run. Speed counts
real target words only. Learning runs afterwards, alone on the machine.

    ./lab bench transformer [--quick]
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

from bench.common import figure, flags, interleaved, replace_attributes
from services.ws_mdl.corpora.homeassistant import FOLDER
from services.ws_mdl.transformer.config import Config, get_config
from services.ws_mdl.transformer.dataset import Batch, Special, causal_mask, make_batch, pad_rows, padding_mask
from services.ws_mdl.transformer.decode import greedy_decode
from services.ws_mdl.transformer.model import LayerNormalization, MultiHeadAttentionBlock, Transformer
from services.ws_mdl.transformer.train import Data, Trainer, get_ds, get_model, train_model
from vla_common.volume import Volume
from vla_modelkit.training.machine import Machine, choose_machine

ENVIRONMENT = "ws_mdl"
SEQ = 350  # the course pads to this
COURSE_BATCH = 8
SENTENCES = 64  # for decoding
BATCH_TOKENS = 2048  # of the lab's batches
MAX_LEN = 32  # of a translation; sentences of the default corpus have 10 words on average
LEARN_MINUTES = 12.0  # on the default corpus
REVERSE_SECONDS = 300.0


# --- the course's way ---------------------------------------------------------------------------------------


class PlainAttention(MultiHeadAttentionBlock):
    """Every intermediate result in memory."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, cache: None = None) -> Tensor:
        query, key, value = (
            linear(x).view(x.shape[0], x.shape[1], self.h, self.d_k).transpose(1, 2)
            for linear, x in ((self.w_q, q), (self.w_k, k), (self.w_v, v))
        )
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores.masked_fill_(~mask, -1e9)
        weights = self.dropout(scores.softmax(dim=-1))
        x = (weights @ value).transpose(1, 2).contiguous().view(q.shape[0], -1, self.h * self.d_k)
        return self.w_o(x)


class PlainNorm(LayerNormalization):
    """Mean and standard deviation one after the other."""

    def forward(self, x: Tensor) -> Tensor:
        mean, std = x.mean(dim=-1, keepdim=True), x.std(dim=-1, keepdim=True)
        return self.alpha * (x - mean) / (std + self.eps) + self.bias


def made_plain(model: Transformer) -> Transformer:
    """Returns the model with the course's way to compute, and the weights it has."""
    plain = {MultiHeadAttentionBlock: PlainAttention, LayerNormalization: PlainNorm}
    for module in model.modules():
        module.__class__ = plain.get(type(module), type(module))
    return model


def padded(rows: list[list[int]], pad: int) -> Tensor:
    """Returns int64 [rows, 350]."""
    return F.pad(pad_rows(rows, pad), (0, SEQ))[:, :SEQ].masked_fill(
        torch.arange(SEQ) >= torch.tensor([len(row) for row in rows])[:, None], pad
    )


def course_batch(batch: Batch, pad: int) -> Batch:
    """Returns a batch with every sentence padded to 350, as the course has it."""
    texts = [padded(tensor.tolist(), pad) for tensor in (batch.encoder_input, batch.decoder_input, batch.label)]
    causal_and_real = causal_mask(SEQ)[None] & padding_mask(texts[1], pad)
    return Batch(*texts, padding_mask(texts[0], pad), causal_and_real, batch.real)


class CourseTraining:
    """The course's loop, a step per call."""

    def __init__(self, config: Config, data: Data, folder: Path) -> None:
        sizes = data.tokenizer_src.get_vocab_size(), data.tokenizer_tgt.get_vocab_size()
        self.model = made_plain(get_model(config, *sizes)).train()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4, eps=1e-9)
        self.loss_fn = nn.CrossEntropyLoss(ignore_index=Special.of(data.tokenizer_src).pad, label_smoothing=0.1)
        self.writer = SummaryWriter(str(folder))
        self.step_number = 0

    def step(self, batch: Batch) -> None:
        encoder_output = self.model.encode(batch.encoder_input, batch.encoder_mask)
        x = self.model.decode(encoder_output, batch.encoder_mask, batch.decoder_input, batch.decoder_mask)
        scores = self.model.project(x)
        loss = self.loss_fn(scores.view(-1, scores.shape[-1]), batch.label.view(-1))
        self.writer.add_scalar("train loss", loss.item(), self.step_number)
        self.writer.flush()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step_number += 1


@torch.no_grad()
def course_greedy(model: Transformer, source: Tensor, mask: Tensor, special: Special) -> list[int]:
    """Returns one sentence's translation: source [1, 350]; all words again at every step."""
    encoder_output = model.encode(source, mask)
    words = torch.full((1, 1), special.sos)
    while words.shape[1] < MAX_LEN:
        x = model.decode(encoder_output, mask, words, causal_mask(words.shape[1]))
        scores = model.project(x[:, -1])
        scores[:, [special.pad, special.sos]] = float("-inf")
        word = scores.argmax(dim=1)
        words = torch.cat([words, word[:, None]], dim=1)
        if word.item() == special.eos:
            break
    return [i for i in words[0, 1:].tolist() if i != special.eos]


# --- nn.Transformer -----------------------------------------------------------------------------------------


class TorchTransformer(nn.Module):
    """nn.Transformer in the place of encoder and decoder; loss over all positions, padding ignored."""

    def __init__(self, config: Config, src_vocab: int, tgt_vocab: int, pad: int) -> None:
        super().__init__()
        ours = get_model(config, src_vocab, tgt_vocab)
        self.src_embed, self.tgt_embed, self.project = ours.src_embed, ours.tgt_embed, ours.projection_layer
        self.src_pos, self.tgt_pos = ours.src_pos, ours.tgt_pos
        self.body = nn.Transformer(
            config.d_model, config.h, config.N, config.N, config.d_ff, config.dropout,
            batch_first=True, norm_first=True, layer_norm_eps=1e-6,
        )  # fmt: skip
        self.loss_fn = nn.CrossEntropyLoss(ignore_index=pad, label_smoothing=config.label_smoothing, reduction="sum")

    def forward(
        self, encoder_input: Tensor, decoder_input: Tensor, label: Tensor, encoder_mask: Tensor,
        decoder_mask: Tensor, real: Tensor,
    ) -> Tensor:  # fmt: skip
        padding = ~encoder_mask[:, 0, 0]
        x = self.body(
            self.src_pos(self.src_embed(encoder_input)), self.tgt_pos(self.tgt_embed(decoder_input)),
            tgt_mask=~decoder_mask[0], tgt_is_causal=True,
            src_key_padding_mask=padding, memory_key_padding_mask=padding,
        )  # fmt: skip
        return self.loss_fn(self.project(x).flatten(0, 1).float(), label.flatten())


def torch_trainer(config: Config, machine: Machine, data: Data, folder: Path) -> Trainer:
    """Returns the lab's own trainer with nn.Transformer inside: same step, loss and optimizer."""
    trainer = Trainer(config, machine, data, folder)
    sizes = data.tokenizer_src.get_vocab_size(), data.tokenizer_tgt.get_vocab_size()
    model = TorchTransformer(config, *sizes, Special.of(data.tokenizer_tgt).pad).to(machine.device)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
    replace_attributes(trainer, model=model, wrapped=model, optimizer=optimizer)
    return trainer


# --- speed --------------------------------------------------------------------------------------------------


@dataclass
class Variant:
    """Something that trains: its step, and the batches that it goes through in turn."""

    step: Callable[[Batch], object]
    batches: list[Batch]
    calls: int = 0
    words: int = 0

    def __call__(self) -> None:
        batch = self.batches[self.calls % len(self.batches)]
        self.step(batch)
        self.calls += 1
        self.words += batch.real.numel()


def training(data: Data, folder: Path, rounds: int) -> None:
    """Measures words per second of all variants in turns, prints the table and the figures."""
    config = get_config("base", precision="fp32")
    cpu = torch.device("cpu")
    fp32, best = Machine(cpu), choose_machine("cpu", "auto")
    pad = Special.of(data.tokenizer_tgt).pad
    batches = [batch for batch, _ in zip(data.train_dataloader, range(rounds + 1), strict=False)]
    specials = Special.of(data.tokenizer_src), Special.of(data.tokenizer_tgt)
    examples = list(data.train_dataloader.dataset)
    eights = [examples[i : i + COURSE_BATCH] for i in range(0, COURSE_BATCH * (rounds + 1), COURSE_BATCH)]
    theirs = [course_batch(make_batch(eight, *specials), pad) for eight in eights]
    course = CourseTraining(config, data, folder / "course")
    variants = {"course, fp32": Variant(course.step, theirs)}
    for name, machine in {"fp32": fp32, "bf16": best}.items():
        if name == "fp32" or machine.dtype:
            variants[f"torch, {name}"] = Variant(_steps(torch_trainer(config, machine, data, folder)), batches)
            variants[f"lab, {name}"] = Variant(_steps(Trainer(config, machine, data, folder)), batches)
    seconds = interleaved(variants, rounds)
    speed = {name: _words_of(variants[name], rounds) / sum(values) for name, values in seconds.items()}
    print(f"training, d_model 512, N 6, h 8, batches of {BATCH_TOKENS} tokens; {rounds} steps each, in turns")
    for name, value in speed.items():
        print(f"  {name:14} {value:8.1f} real target words/s   {value / speed['course, fp32']:6.1f} × the course's")
    print()
    precision = "bf16" if "lab, bf16" in speed else "fp32"
    figure(
        "transformer_train_over_course", speed[f"lab, {precision}"] / speed["course, fp32"], "ratio", ">=5", quick=True
    )
    figure("transformer_train_over_course_fp32", speed["lab, fp32"] / speed["course, fp32"], "ratio", ">=5", quick=True)
    # Four fifths of a step are matrix products of equal sizes on both sides: more than 1 is not to be expected in fp32.
    figure("transformer_train_over_torch", _over(seconds, "torch, fp32", "lab, fp32"), "ratio", ">=0.95")
    if precision == "bf16":
        figure("transformer_train_over_torch_bf16", _over(seconds, "torch, bf16", "lab, bf16"), "ratio", ">=1.0")


def _steps(trainer: Trainer) -> Callable[[Batch], object]:
    return lambda batch: float(trainer.step([batch]))


def _over(seconds: dict[str, list[float]], other: str, ours: str) -> float:
    """Returns how much longer the other side took for the same batch: the median over the batches."""
    return statistics.median(theirs / own for theirs, own in zip(seconds[other], seconds[ours], strict=True))


def _words_of(variant: Variant, rounds: int) -> int:
    """Returns the words of the timed calls; the first one warmed up."""
    return sum(variant.batches[i % len(variant.batches)].real.numel() for i in range(1, rounds + 1))


def decoding(data: Data, count: int) -> None:
    """Translates the same sentences in both ways with the same weights, in float32."""
    config = get_config("base")
    sizes = data.tokenizer_src.get_vocab_size(), data.tokenizer_tgt.get_vocab_size()
    model, plain = get_model(config, *sizes).eval(), made_plain(get_model(config, *sizes)).eval()
    source_special, special = Special.of(data.tokenizer_src), Special.of(data.tokenizer_tgt)
    for norm in (m for m in model.modules() if isinstance(m, LayerNormalization)):
        norm.alpha.data *= math.sqrt((config.d_model - 1) / config.d_model)  # the course's divides by n - 1
    examples = sorted(list(data.val_dataloader.dataset)[:SENTENCES], key=lambda e: len(e.src))
    rows = [[source_special.sos, *e.src, source_special.eos] for e in examples]
    source = pad_rows(rows, source_special.pad)

    def lab() -> list[list[int]]:
        return greedy_decode(model, source, padding_mask(source, source_special.pad), special, MAX_LEN)

    def course() -> list[list[int]]:
        wide = [padded([row], source_special.pad) for row in rows[:count]]
        return [course_greedy(plain, row, padding_mask(row, source_special.pad), special) for row in wide]

    ours, theirs = lab(), course()
    equal = sum(a == b for a, b in zip(ours[:count], theirs, strict=True))
    seconds = interleaved({"course": course, "lab": lab}, 2, warmup=0)
    per_sentence = {"course": min(seconds["course"]) / count, "lab": min(seconds["lab"]) / len(rows)}
    print(f"greedy decoding of {len(rows)} sentences, {count} in the course's way, at most {MAX_LEN} words, float32")
    for name, value in per_sentence.items():
        print(f"  {name:14} {1e3 * value:8.1f} ms per sentence")
    print(f"  {equal} of {count} translations are equal\n")
    figure("transformer_greedy_over_course", per_sentence["course"] / per_sentence["lab"], "ratio", ">=15")


# --- learning -----------------------------------------------------------------------------------------------


def train_for(config: Config, volume: Volume, seconds: float, until: Callable[[dict], bool]) -> Trainer:
    """Returns a run, trained an epoch at a time until its last point is good enough or the time is over."""
    while True:
        trainer = train_model(config, volume)
        point = trainer.history[-1]
        per_epoch = point["seconds"] / len(trainer.history)
        if trainer.stopped or until(point) or point["seconds"] + per_epoch > seconds:
            return trainer
        config = Config(**{**vars(config), "epochs": config.epochs + 1})


def learning(volume: Volume, quick: bool) -> None:
    """Reverses random sequences, then learns the default corpus; prints what came of it and where the curve lies."""
    reverse = Config(
        corpus="reverse", size="tiny", lr_factor=0.5, epochs=1, val_sentences=1000, device="cpu"
    )  # fmt: skip
    started = time.monotonic()
    limit = 40.0 if quick else REVERSE_SECONDS
    trainer = train_for(reverse, volume, limit, lambda point: point["exact"] >= 0.99)
    exact = trainer.history[-1]["exact"]
    print(f"\nreversing 4 to 12 letters: {100 * exact:.1f} % exact after {time.monotonic() - started:.0f} s\n")
    figure("transformer_reverse_exact", exact, "share", ">=0.99")
    figure("transformer_reverse_time", time.monotonic() - started, "s", "<=300")
    if quick:
        return
    trainer = train_for(Config(epochs=1, device="cpu"), volume, 60 * LEARN_MINUTES, lambda _: False)
    point = trainer.history[-1]
    print(f"\ndefault corpus, size small, {point['seconds'] / 60:.1f} minutes: {point}")
    print(f"curve: {trainer.folder / 'curve.png'}\n")
    figure("transformer_small_bleu", 100 * point["bleu"], "BLEU", ">=5")
    figure("transformer_small_loss", point["loss"], "nats/word", "<=3.5")


def main() -> None:
    """Runs all parts and prints FIGURE lines; the corpus comes from this machine's volume."""
    parser = flags(
        "The Transformer lab against the course's way and nn.Transformer.",
        "two steps per variant, reversing for 40 s, no long training",
    )
    parser.add_argument("--only", choices=("training", "decoding", "learning"), help="one part")
    options = parser.parse_args()
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", message="enable_nested_tensor")  # nn.Transformer's, about what nobody asked for
    with tempfile.TemporaryDirectory(prefix="vlalab-bench-") as temporary:
        folder = Path(temporary)
        if options.only != "learning":
            data = get_ds(Config(batch_tokens=BATCH_TOKENS), folder, Machine(torch.device("cpu")), Volume())
        if options.only in (None, "training"):
            training(data, folder, 2 if options.quick else 8)
        if options.only in (None, "decoding"):
            decoding(data, 4 if options.quick else SENTENCES)
    if options.only in (None, "learning"):
        learning(bench_volume(), options.quick)


def bench_volume() -> Volume:
    """Returns a volume of the bench's own for its runs, with a copy of this machine's corpus; the curve stays there."""
    root = Volume().runs / f"bench-transformer-{os.getpid()}"
    root.mkdir()
    if (corpus := Volume().datasets / FOLDER).exists():
        shutil.copytree(corpus, root / "datasets" / FOLDER)
    return Volume(root)


if __name__ == "__main__":
    main()
