"""The Transformer lab: training and decoding, compared with the course's way and with nn.Transformer.

course  the course's way, reimplemented in its plain form: attention step by step, every sentence padded to 350 tokens,
        eight of them in a batch, float32, the loss read and the TensorBoard writer flushed at every step; translations
        one sentence at a time, every word computed from the beginning
torch   nn.Transformer between the same embeddings and projection, on the lab's own batches, same loss and optimizer
lab     services/ws_mdl/transformer as `train` and `translate` run it

All have the paper's base size (d_model 512, N 6, h 8) and the default corpus. Speed counts real target words only.

    ./lab bench transformer [--quick]
"""

from __future__ import annotations

import itertools
import math
import tempfile
import time
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

from bench.common import figure, flags, interleaved, replace_attributes
from services.ws_mdl.transformer.config import Config, get_config
from services.ws_mdl.transformer.dataset import Batch, Special, causal_mask, make_batch, pad_rows, padding_mask
from services.ws_mdl.transformer.decode import greedy_decode
from services.ws_mdl.transformer.model import LayerNormalization, MultiHeadAttentionBlock, Transformer
from services.ws_mdl.transformer.train import Data, Trainer, get_ds, get_model
from vla_common.volume import Volume
from vla_modelkit.training.machine import TrainingMachine, choose_machine

ENVIRONMENT = "ws_mdl"
SEQ = 350  # the course pads to this
COURSE_BATCH = 8
SENTENCES = 64  # for decoding
BATCH_TOKENS = 2048  # of the lab's batches
MAX_LEN = 32  # of a translation; sentences of the default corpus have 10 words on average


class PlainAttention(MultiHeadAttentionBlock):
    """Attention with every intermediate result in memory."""

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
    """Layer normalization with separate mean and standard deviation."""

    def forward(self, x: Tensor) -> Tensor:
        mean, std = x.mean(dim=-1, keepdim=True), x.std(dim=-1, keepdim=True)
        return self.alpha * (x - mean) / (std + self.eps) + self.bias


def made_plain(model: Transformer) -> Transformer:
    """Return the model with the course's modules and the same weights."""
    plain = {MultiHeadAttentionBlock: PlainAttention, LayerNormalization: PlainNorm}
    for module in model.modules():
        module.__class__ = plain.get(type(module), type(module))
    return model


def padded(rows: list[list[int]], pad: int) -> Tensor:
    """Return int64 [rows, 350]."""
    return F.pad(pad_rows(rows, pad), (0, SEQ))[:, :SEQ].masked_fill(
        torch.arange(SEQ) >= torch.tensor([len(row) for row in rows])[:, None], pad
    )


def course_batch(batch: Batch, pad: int) -> Batch:
    """Return a batch with every sentence padded to 350, as in the course."""
    texts = [padded(tensor.tolist(), pad) for tensor in (batch.encoder_input, batch.decoder_input, batch.label)]
    causal_and_real = causal_mask(SEQ)[None] & padding_mask(texts[1], pad)
    return Batch(*texts, padding_mask(texts[0], pad), causal_and_real, batch.real)


class CourseTraining:
    """The course's loop, a step per call."""

    def __init__(self, config: Config, data: Data, directory: Path) -> None:
        sizes = data.tokenizer_src.get_vocab_size(), data.tokenizer_tgt.get_vocab_size()
        self.model = made_plain(get_model(config, *sizes)).train()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4, eps=1e-9)
        self.loss_fn = nn.CrossEntropyLoss(ignore_index=Special.of(data.tokenizer_src).pad, label_smoothing=0.1)
        self.writer = SummaryWriter(str(directory))
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
    """Translate one sentence, source [1, 350], recomputing all words at every step."""
    encoder_output = model.encode(source, mask)
    tokens = torch.full((1, 1), special.sos)
    while tokens.shape[1] < MAX_LEN:
        x = model.decode(encoder_output, mask, tokens, causal_mask(tokens.shape[1]))
        scores = model.project(x[:, -1])
        scores[:, [special.pad, special.sos]] = float("-inf")
        word = scores.argmax(dim=1)
        tokens = torch.cat([tokens, word[:, None]], dim=1)
        if word.item() == special.eos:
            break
    return [i for i in tokens[0, 1:].tolist() if i != special.eos]


class TorchTransformer(nn.Module):
    """nn.Transformer as encoder and decoder; loss over all positions, ignoring padding."""

    def __init__(self, config: Config, src_vocab: int, tgt_vocab: int, pad: int) -> None:
        super().__init__()
        ours = get_model(config, src_vocab, tgt_vocab)
        self.source, self.target = (
            nn.Sequential(ours.src_embed, ours.src_pos),
            nn.Sequential(ours.tgt_embed, ours.tgt_pos),
        )
        self.project = ours.projection_layer
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
            self.source(encoder_input), self.target(decoder_input), tgt_mask=~decoder_mask[0], tgt_is_causal=True,
            src_key_padding_mask=padding, memory_key_padding_mask=padding,
        )  # fmt: skip
        return self.loss_fn(self.project(x).flatten(0, 1).float(), label.flatten())


def torch_trainer(config: Config, machine: TrainingMachine, data: Data, directory: Path) -> Trainer:
    """Return the lab's own trainer with nn.Transformer inside: same step, loss and optimizer."""
    trainer = Trainer(config, machine, data, directory)
    sizes = data.tokenizer_src.get_vocab_size(), data.tokenizer_tgt.get_vocab_size()
    model = TorchTransformer(config, *sizes, Special.of(data.tokenizer_tgt).pad).to(machine.device)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
    replace_attributes(trainer, model=model, wrapped=model, optimizer=optimizer)
    return trainer


def training(data: Data, directory: Path, rounds: int) -> None:
    """Measure each side's training speed in words per second of processor time, on the same corpus, without padding."""
    config, best = get_config("base", precision="fp32"), choose_machine("cpu", "auto")
    specials = Special.of(data.tokenizer_src), Special.of(data.tokenizer_tgt)
    batches = list(itertools.islice(data.train_dataloader, rounds + 1))  # the first one warms up
    examples = list(data.train_dataloader.dataset)
    eights = [examples[i * COURSE_BATCH : (i + 1) * COURSE_BATCH] for i in range(rounds + 1)]
    padded_batches = [course_batch(make_batch(eight, *specials), specials[1].pad) for eight in eights]
    steps = {"course, fp32": (CourseTraining(config, data, directory / "course").step, padded_batches)}
    for precision, machine in {"fp32": TrainingMachine(torch.device("cpu")), "bf16": best}.items():
        if precision == "fp32" or machine.dtype:
            for name, make in {"torch": torch_trainer, "lab": Trainer}.items():
                trainer = make(config, machine, data, directory)
                steps[f"{name}, {precision}"] = (lambda batch, trainer=trainer: float(trainer.step([batch])), batches)
    iterators = {name: iter(side_batches) for name, (_, side_batches) in steps.items()}
    sides = {name: lambda name=name, step=step: step(next(iterators[name])) for name, (step, _) in steps.items()}
    title = (
        f"processor time of training, base size, a batch of {BATCH_TOKENS} tokens (course: {COURSE_BATCH} sentences)"
    )
    seconds = interleaved(sides, rounds, title, clock=time.process_time)
    speeds = {}
    for name, (_, side_batches) in steps.items():
        speeds[name] = sum(batch.real.numel() for batch in side_batches[1:]) / sum(seconds[name])
        print(f"  {name:14} {speeds[name]:8.1f} real target words per second of processor time")
    fastest = speeds.get("lab, bf16", speeds["lab, fp32"])
    figure("transformer_train_over_course", fastest / speeds["course, fp32"], "ratio", ">=5", quick=True)
    over_course = speeds["lab, fp32"] / speeds["course, fp32"]
    figure("transformer_train_over_course_fp32", over_course, "ratio", ">=5", quick=True)
    # Four fifths of a step are equal matrix products on both sides: a ratio far above 1 cannot be expected in fp32.
    figure("transformer_train_over_torch", seconds.ratio("torch, fp32", "lab, fp32"), "ratio", ">=1.0")
    if best.dtype:
        figure("transformer_train_over_torch_bf16", seconds.ratio("torch, bf16", "lab, bf16"), "ratio", ">=1.0")


def decoding(data: Data, count: int) -> None:
    """Translate the same sentences both ways with the same weights, in float32; `count` of them the course's way."""
    config = get_config("base")
    sizes = data.tokenizer_src.get_vocab_size(), data.tokenizer_tgt.get_vocab_size()
    model, plain = get_model(config, *sizes).eval(), made_plain(get_model(config, *sizes)).eval()
    plain.load_state_dict(model.state_dict())
    for norm in (m for m in model.modules() if isinstance(m, LayerNormalization)):
        norm.alpha.data *= math.sqrt((config.d_model - 1) / config.d_model)  # the course's divides by n - 1
    source_special, special = Special.of(data.tokenizer_src), Special.of(data.tokenizer_tgt)
    examples = sorted(list(data.val_dataloader.dataset)[:SENTENCES], key=lambda e: len(e.src))
    rows = [[source_special.sos, *e.src, source_special.eos] for e in examples]
    source = pad_rows(rows, source_special.pad)
    translations: dict[str, list[list[int]]] = {}

    def lab() -> None:
        mask = padding_mask(source, source_special.pad)
        translations["lab"] = greedy_decode(model, source, mask, special, MAX_LEN)

    def course() -> None:
        wide = [padded([row], source_special.pad) for row in rows[:count]]
        masks = [padding_mask(row, source_special.pad) for row in wide]
        translations["course"] = [course_greedy(plain, *pair, special) for pair in zip(wide, masks, strict=True)]

    title = f"greedy decoding, course {count} sentences, lab {len(rows)}, at most {MAX_LEN} words, float32"
    seconds = interleaved({"course": course, "lab": lab}, 2, title)
    equal = sum(a == b for a, b in zip(translations["lab"], translations["course"], strict=False))
    print(f"  {equal} of {count} translations are equal\n")
    ratio = seconds.ratio("course", "lab") * len(rows) / count
    figure("transformer_greedy_over_course", ratio, "ratio", ">=15")


def main() -> None:
    """Run both parts and print FIGURE lines; the corpus comes from this machine's volume."""
    quick = flags(__doc__, "two steps of each side, and four sentences in the course's way").parse_args().quick
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", message="enable_nested_tensor")  # nn.Transformer's
    with tempfile.TemporaryDirectory(prefix="vlalab-bench-") as name:
        directory = Path(name)
        data = get_ds(Config(batch_tokens=BATCH_TOKENS), directory, TrainingMachine(torch.device("cpu")), Volume())
        training(data, directory, 2 if quick else 8)
        decoding(data, 4 if quick else SENTENCES)


if __name__ == "__main__":
    main()
