"""Translation before the Transformer: an encoder and a decoder of LSTMs, without and with attention.

Read it from top to bottom. The cell is Hochreiter & Schmidhuber's (1997) with the forget gate of Gers et al. (2000),
the pair of networks is Sutskever et al.'s (2014), the attention Bahdanau et al.'s (2015). `Seq2Seq` has the methods of
lab 1's `Transformer`, so lab 1's loss, greedy search, beam search and validation take it as it is. Shapes stand at the
end of the line: batch sentences of seq tokens; d_model numbers a word, hidden numbers a state.

    ./lab train lstm --corpus reverse

`--set model=plain` has no attention, `--set model=transformer` is lab 1's model, trained in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from services.ws_mdl import corpora
from services.ws_mdl.epochs import new_run
from services.ws_mdl.practice import lengths, training
from services.ws_mdl.practice.settings import Lstm as Config
from services.ws_mdl.practice.training import Figures, PracticeRun
from services.ws_mdl.transformer import dataset
from services.ws_mdl.transformer.dataset import Example, PairDataset, Special, make_batch
from services.ws_mdl.transformer.decode import translate
from services.ws_mdl.transformer.model import ProjectionLayer, TranslationLoss, build_transformer
from services.ws_mdl.transformer.tokenization import train_tokenizer
from services.ws_mdl.transformer.train import Sample, as_text, run_validation
from services.ws_mdl.transformer.visualize import plot_attention
from vla_common.volume import Volume
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import TrainingMachine
from vla_modelkit.training.weights import State as Stored

State = tuple[Tensor, Tensor]  # h, what others see, and c, the memory: each (batch, hidden)


def lstm_cell(x: Tensor, state: State, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> State:
    """Return the state after one more word x [batch, d_model]: what to keep, what to add, what to show.

    The weights hold four gates below each other: input, forget, candidate, output. It is here to be read: `Seq2Seq`
    trains with torch's, which a test compares with this one.
    """
    h, c = state
    gates = x @ w_ih.T + b_ih + h @ w_hh.T + b_hh  # (batch, 4 · hidden)
    i, f, g, o = gates.chunk(4, dim=-1)  # each (batch, hidden)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()  # a sum: where f is 1, a gradient passes through it unchanged
    return o.sigmoid() * c.tanh(), c


# --- attention, encoder and decoder -------------------------------------------------------------------------


class AdditiveAttention(nn.Module):
    """Score of each source word for the decoder's next word: v · tanh(W s + U h_j)."""

    def __init__(self, hidden: int, source: int) -> None:
        super().__init__()
        self.w = nn.Linear(hidden, hidden, bias=False)
        self.u = nn.Linear(source, hidden, bias=False)
        self.v = nn.Linear(hidden, 1, bias=False)

    def forward(self, s: Tensor, keys: Tensor, values: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted mean of the values, float [batch, source], and the weights [batch, seq].

        s [batch, hidden]; keys = u(values) [batch, seq, hidden], once for a sentence; real bool [batch, seq].
        """
        scores = self.v(torch.tanh(self.w(s)[:, None] + keys)).squeeze(-1)  # (batch, seq)
        weights = scores.masked_fill(~real, float("-inf")).softmax(dim=-1)  # (batch, seq)
        return (weights[:, None] @ values).squeeze(1), weights


class StateCache:
    """The decoder's tensors between two words, a row per sentence; see lab 1's KeyValueCache."""

    def __init__(self) -> None:
        self.tensors: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        return len(self.tensors)

    def select(self, rows: Tensor) -> None:
        self.tensors = tuple(tensor[rows] for tensor in self.tensors)


class Seq2Seq(nn.Module):
    """A bidirectional encoder and an autoregressive decoder.

    attention: without it the decoder sees the source only through its initial state of fixed size. `attention_scores`
    [batch, tgt seq, src seq] are the last call's weights.
    """

    def __init__(
        self, src_vocab_size: int, tgt_vocab_size: int, d_model: int, hidden: int, dropout: float = 0.1,
        attention: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.src_embed = nn.Embedding(src_vocab_size, d_model)
        self.tgt_embed = nn.Embedding(tgt_vocab_size, d_model)
        self.encoder = nn.LSTM(d_model, hidden, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * hidden, 2 * hidden)  # from both ends of the source to the decoder's initial h and c
        self.attention = AdditiveAttention(hidden, 2 * hidden) if attention else None
        self.decoder = nn.LSTMCell(d_model + (2 * hidden if attention else 0), hidden)
        self.readout = nn.Linear(self.decoder.input_size + hidden, d_model)
        self.projection_layer = ProjectionLayer(d_model, tgt_vocab_size)
        self.dropout = nn.Dropout(dropout)
        self.attention_scores: Tensor | None = None
        for cell in (self.encoder, self.decoder):
            lengths.open_forget_gates(cell)

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Encode words in both directions: float [batch, seq, 2 · hidden], 0 for padding."""
        x = self.dropout(self.src_embed(src))  # (batch, seq, d_model)
        counts = src_mask[:, 0, 0].sum(dim=1).cpu()  # without packing the LSTM would also read the padding
        packed = pack_padded_sequence(x, counts, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.encoder(packed)[0], batch_first=True, total_length=src.shape[1])[0]

    def first_state(self, encoder_output: Tensor, real: Tensor) -> State:
        """Return the decoder's initial state, from the final states of both directions."""
        forwards, backwards = encoder_output.chunk(2, dim=-1)  # each (batch, seq, hidden)
        last = forwards[torch.arange(len(real), device=real.device), real.sum(dim=1) - 1]  # (batch, hidden)
        h, c = self.bridge(torch.cat([last, backwards[:, 0]], dim=-1)).chunk(2, dim=-1)
        return h.tanh(), c

    def decode(
        self, encoder_output: Tensor, src_mask: Tensor, tgt: Tensor, tgt_mask: Tensor | None = None,
        cache: list[tuple[StateCache, StateCache]] | None = None,
    ) -> Tensor:  # fmt: skip
        """Return float [batch, tgt seq, d_model] for the target ids [batch, tgt seq].

        No mask is needed: later words have not been read yet. With `cache`, tgt has only the tokens that are not in it.
        """
        real = src_mask[:, 0, 0]  # (batch, src seq)
        state, cross = cache[0] if cache else (StateCache(), StateCache())
        if not state:
            state.tensors = self.first_state(encoder_output, real)
        if not cross and self.attention:
            cross.tensors = (self.attention.u(encoder_output),)  # (batch, src seq, hidden)
        embedded = self.dropout(self.tgt_embed(tgt))  # (batch, tgt seq, d_model)
        seen, outputs = [], []
        for word in embedded.unbind(dim=1):
            if self.attention:
                context, weights = self.attention(state.tensors[0], *cross.tensors, encoder_output, real)
                seen.append(weights)
                word = torch.cat([word, context], dim=-1)  # (batch, d_model + 2 · hidden)
            state.tensors = self.decoder(word, state.tensors)
            outputs.append(torch.cat([word, state.tensors[0]], dim=-1))
        self.attention_scores = torch.stack(seen, dim=1).detach() if seen else None
        return self.dropout(self.readout(torch.stack(outputs, dim=1)).tanh())

    def project(self, x: Tensor) -> Tensor:
        """Return scores [..., target vocabulary] (logits: no softmax yet)."""
        return self.projection_layer(x)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor | None = None) -> Tensor:
        """Return the scores [batch, seq, target vocabulary] of each target position's next word."""
        return self.project(self.decode(self.encode(src, src_mask), src_mask, tgt))

    def new_cache(self) -> list[tuple[StateCache, StateCache]]:
        """Return an empty cache for `decode`: the decoder's state, and the keys of attention."""
        return [(StateCache(), StateCache())]


# --- sentences ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sentences:
    """Training pairs, held-out pairs, and the tokenizers of both languages."""

    learned: PairDataset
    val: PairDataset
    tokenizers: tuple[Tokenizer, Tokenizer]

    def __len__(self) -> int:
        return len(self.learned)

    @property
    def specials(self) -> tuple[Special, Special]:
        return Special.of(self.tokenizers[0]), Special.of(self.tokenizers[1])

    def batch(self, index: Tensor) -> dataset.Batch:
        """Return the training pairs of those numbers, padded to the longest."""
        return make_batch([self.learned[i] for i in index.tolist()], *self.specials)


def load(config: Config, volume: Volume) -> Sentences:
    """Load a run's corpus, with tokenizers trained on the training pairs."""
    corpus = corpora.load(config.corpus, config.pair, volume)
    parts = dataset.split_pairs(corpus.pairs, config.val_fraction)
    source, target = (
        train_tokenizer((pair[side] for pair in parts[0]), "word", config.min_frequency, 0) for side in (0, 1)
    )
    learned, val = (PairDataset(pairs, source, target, config.seq) for pairs in parts)
    return Sentences(learned, val, (source, target))


# --- run ----------------------------------------------------------------------------------------------------


class Training(PracticeRun):
    """A run in progress."""

    config: Config
    data: Sentences
    unit = "sentences"

    @property
    def summary(self) -> str:
        count = sum(parameter.numel() for parameter in self.nn_model.parameters())
        return f"{len(self.data):,} sentence pairs, {self.config.model} model of {count / 1e6:.2f} million weights"

    def loss(self, index: Tensor) -> Tensor:
        batch = self.data.batch(index).to(self.machine.device)
        return TranslationLoss(self.nn_model, self.config.label_smoothing)(*batch) / batch.real.numel()

    def measure(self) -> Figures:
        sampler = dataset.BucketSampler(self.data.val.lengths(), 2048, shuffle=False)
        result = run_validation(
            TranslationLoss(self.averaged).eval(), dataset.get_loader(self.data.val, sampler, *self.data.specials),
            *self.data.tokenizers, self.machine, self.config.seq, self.config.val_sentences,
        )  # fmt: skip
        return {"loss": result.loss, "exact_percent": 100 * result.exact, "BLEU_percent": 100 * result.bleu}

    def show(self, directory: Path, curves: Curves) -> str:
        pairs, seq = self.data.val.pairs[:2], self.config.seq
        translations = translate(self.averaged, [source for source, _ in pairs], *self.data.tokenizers, seq=seq)
        lines = [as_text([Sample(*pair, text) for pair, text in zip(pairs, translations, strict=True)])]
        if isinstance(self.averaged, Seq2Seq) and self.averaged.attention:
            figure = self.attention_figure(*self.data.val.pairs[0])
            lines.append(f"attention: {self.save_figure('attention', figure, directory, curves)}")
        if self.config.corpus == "reverse":
            letters = range(4, min(24, seq - 2) + 1, 2)
            shares = lengths.exact_by_length(self.averaged, *self.data.tokenizers, seq, letters, count=50)
            lines.append(lengths.format_shares(shares))
        return "\n".join(lines)

    def extra_state(self) -> Stored:
        return {**super().extra_state(), "tokenizers": [tokenizer.to_str() for tokenizer in self.data.tokenizers]}

    def digest(self) -> str:
        return training.digest_of(*(text for pair in self.data.learned.pairs for text in pair))

    @torch.inference_mode()
    def attention_figure(self, source: str, target: str) -> Figure:
        """Plot the attention of target to source words, with teacher forcing."""
        src, tgt = (tokens.encode(text) for tokens, text in zip(self.data.tokenizers, (source, target), strict=True))
        batch = make_batch([Example(src.ids, tgt.ids)], *self.data.specials).to(self.machine.device)
        self.averaged(batch.encoder_input, batch.decoder_input, batch.encoder_mask)
        weights, keys = self.averaged.attention_scores[None].cpu(), ["[SOS]", *src.tokens, "[EOS]"]
        return plot_attention(weights, [*tgt.tokens, "[EOS]"], keys, "rows: target words, columns: source words")


def get_model(config: Config, tokenizer_src: Tokenizer, tokenizer_tgt: Tokenizer) -> nn.Module:
    """Return the configured model with fresh weights."""
    sizes = tokenizer_src.get_vocab_size(), tokenizer_tgt.get_vocab_size()
    if config.model == "transformer":
        width, wide = config.hidden, 4 * config.hidden
        return build_transformer(*sizes, config.seq, config.seq, width, config.layers, config.h, config.dropout, wide)
    return Seq2Seq(*sizes, config.d_model, config.hidden, config.dropout, config.model == "attention")


def get_training(config: Config, machine: TrainingMachine, volume: Volume) -> Training:
    """Return a run before its first batch."""
    data = load(config, volume)
    return new_run(Training, config, machine, data, lambda: get_model(config, *data.tokenizers))


if __name__ == "__main__":
    training.main_of(Config, get_training, __doc__, "./lab train lstm --corpus reverse --set model=plain")
