"""A small GPT (Radford et al., 2018), of lab 1's blocks: each token looks at those before it and guesses the next.

Shapes stand at the end of the line: batch texts of seq tokens, each a vector of d_model numbers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.ws_mdl.practice.blocks import build_positions, build_stack, initialize
from services.ws_mdl.transformer.dataset import causal_mask
from services.ws_mdl.transformer.model import InputEmbeddings


class GPT(nn.Module):
    """Tokens, positions, a stack of blocks behind a causal mask, and a score for every next token.

    The scores come from the embedding's own table: a token is likely where the vector points to its embedding.
    """

    def __init__(
        self, vocab_size: int, seq: int, d_model: int = 96, N: int = 3, h: int = 4, d_ff: int = 384,
        dropout: float = 0.1, positions: str = "rotary",
    ) -> None:  # fmt: skip
        super().__init__()
        self.seq = seq
        self.embed = InputEmbeddings(d_model, vocab_size)
        self.positions = build_positions(positions, d_model, seq, dropout)
        self.decoder = build_stack(d_model, N, h, d_ff, dropout, seq, positions=positions)
        initialize(self)

    def forward(self, ids: Tensor) -> Tensor:
        """Returns scores [batch, seq, vocabulary] of what follows each of the tokens int64 [batch, seq]."""
        mask = causal_mask(ids.shape[1]).to(ids.device)  # (1, seq, seq)
        x = self.decoder(self.positions(self.embed(ids)), mask)  # (batch, seq, d_model)
        return F.linear(x, self.embed.embedding.weight)


def loss_of(model: GPT, ids: Tensor) -> Tensor:
    """Returns the mean cost in nats of each token but the first, of texts int64 [batch, seq + 1]."""
    return F.cross_entropy(model(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())


# --- sampling -----------------------------------------------------------------------------------------------


def next_probabilities(logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Returns what the next token is drawn from: float [batch, vocabulary], rows adding up to 1.

    logits: [batch, vocabulary]. temperature: below 1 prefers the likely, 0 takes the likeliest alone. top_k: only the k
    likeliest (0: all). top_p: only the likeliest that together have this much (Holtzman et al., 2019), at least one.
    """
    if temperature < 0 or top_k < 0 or not 0 < top_p <= 1:
        raise ValueError(
            f"temperature {temperature}, top_k {top_k}, top_p {top_p}; expected at least 0, at least 0, above 0 to 1"
        )
    if temperature == 0:
        return F.one_hot(logits.argmax(dim=-1), logits.shape[-1]).float()
    likely, order = (logits.float() / temperature).softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    if top_k:
        likely[:, top_k:] = 0
        likely = likely / likely.sum(dim=-1, keepdim=True)
    before = likely.cumsum(dim=-1) - likely  # of those that are likelier: the one that crosses top_p still counts
    likely = likely.masked_fill(before >= top_p, 0)
    likely = likely / likely.sum(dim=-1, keepdim=True)
    return torch.zeros_like(likely).scatter(-1, order, likely)


@torch.inference_mode()
def generate(
    model: GPT, ids: Tensor, count: int, generator: torch.Generator, *,
    temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0,
) -> Tensor:  # fmt: skip
    """Returns texts int64 [batch, seq], each with `count` tokens more; the last `model.seq` tokens are looked at."""
    for _ in range(count):
        logits = model(ids[:, -model.seq :])[:, -1]
        likely = next_probabilities(logits, temperature, top_k, top_p).cpu()
        ids = torch.cat([ids, torch.multinomial(likely, 1, generator=generator).to(ids.device)], dim=1)
    return ids
