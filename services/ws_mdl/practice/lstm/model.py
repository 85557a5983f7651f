"""Translation before the Transformer: an encoder and a decoder of LSTMs, without and with attention.

Read it from top to bottom. The cell is Hochreiter & Schmidhuber's (1997) with the forget gate of Gers et al. (2000),
the pair of networks is Sutskever et al.'s (2014), the attention Bahdanau et al.'s (2015). `Seq2Seq` has the methods of
lab 1's `Transformer`, so that lab 1's loss, greedy search, beam search and validation take it as it is. Shapes stand at
the end of the line: batch sentences of seq tokens; d_model numbers a word, hidden numbers a state.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from services.ws_mdl.transformer.model import ProjectionLayer

State = tuple[Tensor, Tensor]  # h, what others see, and c, the memory: each (batch, hidden)


# --- the cell -----------------------------------------------------------------------------------------------


def lstm_cell(x: Tensor, state: State, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> State:
    """Returns the state after one more word x [batch, d_model]: what to keep, what to add, what to show.

    The weights hold four gates below each other, as torch has them: input, forget, candidate, output.
    """
    h, c = state
    gates = x @ w_ih.T + b_ih + h @ w_hh.T + b_hh  # (batch, 4 · hidden)
    i, f, g, o = gates.chunk(4, dim=-1)  # each (batch, hidden)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()  # a sum: where f is 1, a gradient passes through it unchanged
    return o.sigmoid() * c.tanh(), c


class LSTM(nn.Module):
    """One layer of LSTM over a sentence, forwards or both ways; weights have the names of torch.nn.LSTM's.

    It is here to be read: `Seq2Seq` trains with torch's, which a test holds equal to this one.
    """

    def __init__(self, d_model: int, hidden: int, bidirectional: bool = False) -> None:
        super().__init__()
        self.hidden = hidden
        self.ways = ("", "_reverse") if bidirectional else ("",)
        for way in self.ways:
            for name, shape in (("weight_ih", (d_model,)), ("weight_hh", (hidden,)), ("bias_ih", ()), ("bias_hh", ())):
                weight = torch.empty(4 * hidden, *shape).uniform_(-(hidden**-0.5), hidden**-0.5)
                self.register_parameter(f"{name}_l0{way}", nn.Parameter(weight))

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Returns every position's h, float [batch, seq, ways · hidden], 0 for padding.

        real: bool [batch, seq], false where there is padding: the state stays there as it was.
        """
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if real is None else real
        return torch.cat([self._one_way(x, real, way) for way in self.ways], dim=-1)

    def _one_way(self, x: Tensor, real: Tensor, way: str) -> Tensor:
        weights = [getattr(self, f"{name}_l0{way}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        state = (x.new_zeros(len(x), self.hidden), x.new_zeros(len(x), self.hidden))
        outputs: list[Tensor] = [state[0]] * x.shape[1]
        for t in range(x.shape[1]) if way == "" else reversed(range(x.shape[1])):
            here = real[:, t, None]  # (batch, 1)
            new = lstm_cell(x[:, t], state, *weights)
            state = tuple(torch.where(here, fresh, old) for fresh, old in zip(new, state, strict=True))
            outputs[t] = state[0] * here
        return torch.stack(outputs, dim=1)


# --- attention ----------------------------------------------------------------------------------------------


class AdditiveAttention(nn.Module):
    """How well does each word of the source fit to what the decoder is about to say? v · tanh(W s + U h_j)."""

    def __init__(self, hidden: int, source: int) -> None:
        super().__init__()
        self.w = nn.Linear(hidden, hidden, bias=False)
        self.u = nn.Linear(source, hidden, bias=False)
        self.v = nn.Linear(hidden, 1, bias=False)

    def forward(self, s: Tensor, keys: Tensor, values: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the weighted mean of the values, float [batch, source], and the weights [batch, seq].

        s [batch, hidden]; keys = u(values) [batch, seq, hidden], once for a sentence; real bool [batch, seq].
        """
        scores = self.v(torch.tanh(self.w(s)[:, None] + keys)).squeeze(-1)  # (batch, seq)
        weights = scores.masked_fill(~real, float("-inf")).softmax(dim=-1)  # (batch, seq)
        return (weights[:, None] @ values).squeeze(1), weights


# --- encoder and decoder ------------------------------------------------------------------------------------


class Kept:
    """Tensors that decoding keeps from one word to the next, a row for each sentence; see lab 1's KeyValueCache."""

    def __init__(self) -> None:
        self.tensors: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        return len(self.tensors)

    def select(self, rows: Tensor) -> None:
        """Keeps these sentences, in this order."""
        self.tensors = tuple(tensor[rows] for tensor in self.tensors)


class Seq2Seq(nn.Module):
    """A source read both ways, then a target said word by word.

    attention: without it the decoder knows of the source only the state that it starts from, of fixed size, however
    long the sentence. `attention_scores` [batch, tgt seq, src seq] are the last call's weights.
    """

    def __init__(
        self, src_vocab_size: int, tgt_vocab_size: int, d_model: int, hidden: int, dropout: float = 0.1,
        attention: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.hidden = hidden
        self.src_embed = nn.Embedding(src_vocab_size, d_model)
        self.tgt_embed = nn.Embedding(tgt_vocab_size, d_model)
        self.encoder = nn.LSTM(d_model, hidden, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * hidden, 2 * hidden)  # from the source's two ends to the decoder's first h and c
        self.attention = AdditiveAttention(hidden, 2 * hidden) if attention else None
        self.decoder = nn.LSTMCell(d_model + (2 * hidden if attention else 0), hidden)
        self.readout = nn.Linear(self.decoder.input_size + hidden, d_model)
        self.projection_layer = ProjectionLayer(d_model, tgt_vocab_size)
        self.dropout = nn.Dropout(dropout)
        self.attention_scores: Tensor | None = None
        for cell in (self.encoder, self.decoder):
            open_forget_gates(cell)

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Returns what stands at each word, read from both ends: float [batch, seq, 2 · hidden], 0 for padding."""
        x = self.dropout(self.src_embed(src))  # (batch, seq, d_model)
        lengths = src_mask[:, 0, 0].sum(dim=1).cpu()  # padding comes last; without this it would be read as words
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.encoder(packed)[0], batch_first=True, total_length=src.shape[1])[0]

    def first_state(self, encoder_output: Tensor, real: Tensor) -> State:
        """Returns the decoder's first state, of what each way knows where it ends."""
        forwards, backwards = encoder_output.chunk(2, dim=-1)  # each (batch, seq, hidden)
        last = forwards[torch.arange(len(real), device=real.device), real.sum(dim=1) - 1]  # (batch, hidden)
        h, c = self.bridge(torch.cat([last, backwards[:, 0]], dim=-1)).chunk(2, dim=-1)
        return h.tanh(), c

    def decode(
        self, encoder_output: Tensor, src_mask: Tensor, tgt: Tensor, tgt_mask: Tensor | None = None,
        cache: list[tuple[Kept, Kept]] | None = None,
    ) -> Tensor:  # fmt: skip
        """Returns float [batch, tgt seq, d_model] for the target ids [batch, tgt seq]; no mask is needed: what comes
        later has not been read yet.

        With `cache` (from `new_cache`), tgt holds only the words that no earlier call has seen.
        """
        real = src_mask[:, 0, 0]  # (batch, src seq)
        own, cross = cache[0] if cache else (Kept(), Kept())
        if not own:
            own.tensors = self.first_state(encoder_output, real)
        if not cross and self.attention:
            cross.tensors = (self.attention.u(encoder_output),)  # (batch, src seq, hidden)
        words = self.dropout(self.tgt_embed(tgt))  # (batch, tgt seq, d_model)
        seen, outputs = [], []
        for word in words.unbind(dim=1):
            if self.attention:
                context, weights = self.attention(own.tensors[0], *cross.tensors, encoder_output, real)
                seen.append(weights)
                word = torch.cat([word, context], dim=-1)  # (batch, d_model + 2 · hidden)
            own.tensors = self.decoder(word, own.tensors)
            outputs.append(torch.cat([word, own.tensors[0]], dim=-1))
        self.attention_scores = torch.stack(seen, dim=1).detach() if seen else None
        return self.dropout(self.readout(torch.stack(outputs, dim=1)).tanh())

    def project(self, x: Tensor) -> Tensor:
        """Returns scores [..., target vocabulary] (logits: no softmax yet)."""
        return self.projection_layer(x)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor | None = None) -> Tensor:
        """Returns the scores [batch, seq, target vocabulary] of each target position's next word."""
        return self.project(self.decode(self.encode(src, src_mask), src_mask, tgt))

    def new_cache(self) -> list[tuple[Kept, Kept]]:
        """Returns an empty cache for `decode`: the decoder's state, and the keys of attention."""
        return [(Kept(), Kept())]


def open_forget_gates(cell: nn.LSTM | nn.LSTMCell) -> None:
    """Sets the forget gates' bias to 1, so that a fresh network keeps what it reads (Jozefowicz et al., 2015)."""
    with torch.no_grad():
        for name, bias in cell.named_parameters():
            if name.startswith("bias_ih"):
                bias[cell.hidden_size : 2 * cell.hidden_size] = 1.0
            elif name.startswith("bias_hh"):
                bias[cell.hidden_size : 2 * cell.hidden_size] = 0.0  # torch adds two biases
