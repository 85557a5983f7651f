"""Small GPTs that differ in how a token knows its place: the same CPU seconds, and windows longer than they learned."""

from __future__ import annotations

import math

import torch

from bench.common import figure
from bench.parts.practice_lstm import CPU, one_thread, trained_for
from services.ws_mdl.practice.blocks import POSITIONS
from services.ws_mdl.practice.gpt import GPT, get_training, held_out_nats
from services.ws_mdl.practice.settings import Gpt as Config
from vla_common.volume import Volume

CPU_S = 30.0
SEQ = 64  # tokens of a window that is learned from
LONGER = (1, 2, 4)  # times that
HELD = 20  # streams that are measured on
SIZE = {"d_model": 64, "N": 2, "d_ff": 256, "batch_size": 16}


def measure_positions(quick: bool) -> list[bool]:
    """Prints perplexities by the window's length; returns whether each figure meets its target."""
    print(f"\npositions: GPTs of characters, {CPU_S:.0f} CPU s each, windows of {SEQ} tokens learned from")
    table = {}
    with one_thread():
        for kind in POSITIONS:
            config = Config(device="cpu", precision="fp32", seq=SEQ, positions=kind, name=kind, **SIZE)
            run = trained_for(config, lambda config: get_training(config, CPU, Volume()), CPU_S, quick)
            streams = run.data.held[: 3 if quick else HELD]
            table[kind] = [perplexity(run.averaged, config, streams, times) for times in LONGER]
            print(f"  {kind:<11}" + "  ".join(f"{SEQ * n}: {p:.3f}" for n, p in zip(LONGER, table[kind], strict=True)))
    relative, sinusoidal = table["relative"], table["sinusoidal"]
    return [
        figure("practice.relative_against_none", relative[0] / table["none"][0], "×", "<=1"),
        figure("practice.relative_four_times_as_long", relative[-1] / relative[0], "×", "<=1.5"),
        figure("practice.sinusoidal_four_times_as_long", sinusoidal[-1] / sinusoidal[0], "×", ">=1.5"),
    ]


def perplexity(model: GPT, config: Config, streams: list[list[int]], times: int) -> float:
    """Returns the perplexity in windows so many times as long as those learned from; NaN where there is no position."""
    if times > 1 and config.positions == "learned":
        return math.nan
    size = {name: getattr(config, name) for name in ("d_model", "N", "h", "d_ff", "positions")}
    longer = GPT(model.embed.embedding.num_embeddings, times * SEQ, dropout=0.0, **size).eval()
    state = {name: weight for name, weight in model.state_dict().items() if name != "positions.pe" or times == 1}
    missing = longer.load_state_dict(state, strict=False)
    assert set(missing.missing_keys) <= {"positions.pe"} and not missing.unexpected_keys  # sines are reckoned, not kept
    with torch.inference_mode():
        nats = held_out_nats(longer, streams, times * SEQ)
    return math.exp(nats / sum(len(stream) - 1 for stream in streams))
