"""OpenVLA: this project's engine compared with upstream's computation, on the same weights in one run.

On a CPU a tiny model, on a GPU one of the 7B model's own shape; weights are made up on the device. What is measured:
- one stream: milliseconds per action of both alternately, ours without drafts, with drafts that are right as often
  as on recorded actions, as they are (smooth) and jittered, and with all right and all wrong; upstream's in as many
  threads as torch takes, and on a CPU in one too; ours as the service has it, in as many as cores are idle;
- drafts: decoding passes on recorded LIBERO actions (tests/openvla/data), turned into tokens, as they are and jittered;
- OFT: actions per second of OpenVLA-OFT (two images, the state, chunks of eight);
- service: overhead of /v1/act over the model, on loopback.
`./lab bench gpu` has batches, and what bandwidth and peak of a GPU allow.

    ./lab bench openvla [--quick] [--options "--size tiny|mid|full --busy N"]

bench/parts/openvla_plain.py is upstream's computation.
--busy N runs N programs with endless computation at the same time, as on a shared machine.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vla_modelkit.threads import set_wait_policy

set_wait_policy()  # as the service does, before torch is imported

import numpy as np
import torch

from bench.common import figure, flags, interleaved
from bench.parts.gpu_openvla import oft_engine
from bench.parts.openvla_measure import (
    decode_passes,
    jittered,
    recorded_drafts,
    recorded_tokens,
    service_overhead_ms,
)
from bench.parts.openvla_plain import PlainOFT, PlainOpenVLA
from services.openvla.checkpoint import tiny
from services.openvla.checkpoint.oft import CHUNK
from services.openvla.decoding.actions import ActionCodec
from services.openvla.decoding.drafts import Drafter
from services.openvla.decoding.engine import Engine, capacity
from services.openvla.decoding.parallel import ParallelEngine
from services.openvla.model import attention
from services.openvla.model.openvla import load_model, model_shapes
from services.openvla.model.vision import patch_count
from vla_modelkit.weights import MadeUp

ENVIRONMENT = "openvla"
PROMPT = [1, *range(300, 318), 29871]  # as long as LIBERO's are


def main() -> None:
    """Prints the tables and the FIGURE lines."""
    parser = flags("OpenVLA: our engine against upstream's computation.", "fewer rounds: about a minute")
    parser.add_argument("--size", choices=list(tiny.SPECS), help="default: full on a GPU, tiny on a CPU")
    parser.add_argument("--busy", type=int, default=0, help="number of busy programs at the same time")
    options = parser.parse_args()
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    size = options.size or ("full" if device.type == "cuda" else "tiny")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    rounds = 8 if options.quick else 40
    spec, threads = tiny.SPECS[size], torch.get_num_threads()
    engine, source = build(spec, dtype, device)
    weights_gb = sum(engine.model.memory().values()) / 1e9
    print(
        f"{size}: {weights_gb:.2f} GB of {dtype} on {device}, {engine.model.patches} patches, attention "
        f"{engine.model.llama.attention.__name__}, {threads} threads at most"
    )
    engine.warm_up()
    plain = PlainOpenVLA(spec.model_config(), source, dtype, device)
    with busy_programs(options.busy):
        single_stream(engine, lambda pixels: plain.generate(pixels, PROMPT), rounds, threads)
    on_recorded_actions()
    oft(*build_oft(spec, dtype, device), rounds)
    median, p90 = service_overhead_ms(rounds * 5)
    print(f"\n/v1/act without the model, one client, 224x224x3 image: median {median:.2f} ms, p90 {p90:.2f} ms")
    figure("openvla_service_overhead", median, "ms", "<=1.5")


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """Runs `count` programs that compute without end; prints the machine's load."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        print(f"{count} busy programs; load before {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def build(spec: tiny.TinySpec, dtype: torch.dtype, device: torch.device) -> tuple[Engine, MadeUp]:
    """Return our engine over made-up weights, and those."""
    config = spec.model_config()
    source = MadeUp(model_shapes(config), device)
    implementation, _ = attention.choose("auto", device, dtype)
    model = load_model(config, source, dtype, device, implementation, capacity(patch_count(config.towers)))
    return Engine(model, max_batch=16), source


def build_oft(spec: tiny.TinySpec, dtype: torch.dtype, device: torch.device) -> tuple[ParallelEngine, PlainOFT]:
    """Return our engine of OpenVLA-OFT and upstream's computation over the same made-up weights."""
    engine = oft_engine(spec, dtype, device)
    config = engine.model.config
    return engine, PlainOFT(config, MadeUp(model_shapes(config), device), dtype, device)


def single_stream(engine: Engine, other: Callable[[np.ndarray], np.ndarray], rounds: int, threads: int) -> None:
    """Time single observations of both sides alternately and check that their tokens are equal.

    threads: what torch computes in by itself; upstream has it before each of its turns.
    """
    gpu, side = engine.device.type == "cuda", engine.model.config.towers[0].image_size
    image = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)

    def ours(*drafts: np.ndarray) -> np.ndarray:
        return engine.generate(image[None], [PROMPT], *drafts).tokens

    def single_threaded() -> None:
        torch.set_num_threads(1)
        other(image)

    tokens = ours()
    agree = np.array_equal(tokens[0], other(image))
    right = np.stack([tokens, tokens, tokens], axis=1)
    likely = {bins: itertools.cycle(recorded_drafts(tokens[0], 97, bins)) for bins in (0, 2)}
    sides = {
        "upstream": lambda: other(image),
        **({} if gpu else {"upstream, one thread": single_threaded}),
        "ours, no drafts": ours,
        "ours, drafts, smooth": lambda: ours(next(likely[0])[None]),
        "ours, drafts, jitter 2": lambda: ours(next(likely[2])[None]),
        "ours, all guessed right": lambda: ours(right),
        "ours, all guessed wrong": lambda: ours(right - 1),
    }
    title = f"one observation; both chose the same tokens: {'yes' if agree else 'no'}"
    seconds = interleaved(sides, rounds, title, warmup=2, before=lambda: torch.set_num_threads(threads))
    target = ">=4" if gpu else ">=1.9"
    figure("openvla_over_upstream", seconds.ratio("upstream", "ours, no drafts"), "ratio", target, quick=True)
    if not gpu:
        figure("openvla_tokens_equal", float(agree), "share", ">=1", quick=True)


def on_recorded_actions() -> None:
    """Count the decoding passes of recorded episodes that drafts save, and check that the tokens are the recorded."""
    codec = ActionCodec()
    recorded = recorded_tokens(codec)
    steps = sum(map(len, recorded.values()))
    print(f"\ndecoding passes on {len(recorded)} recorded episodes ({steps} steps); without drafts 6 a step")
    for name, bins, target in (("openvla_draft_cut", 0, ">=0.4"), ("openvla_draft_cut_jitter_2", 2, ">=0.1")):
        total = 0
        for tokens in jittered(recorded, codec, bins).values():
            passes, made = decode_passes(tokens, Drafter(codec), width=6)
            assert np.array_equal(made, tokens)
            total += passes
        figure(name, 1 - total / (6 * steps), "share", target, quick=True)


def oft(engine: ParallelEngine, plain: PlainOFT, rounds: int) -> None:
    """Time chunks of both sides alternately."""
    side, generator = engine.model.config.towers[0].image_size, np.random.default_rng(3)
    images, state = generator.integers(0, 256, (2, side, side, 3), np.uint8), generator.uniform(-1, 1, 8)
    sides = {
        "upstream": lambda: plain.generate(images, PROMPT, state),
        "ours": lambda: engine.generate(images[None], [PROMPT], state[None])[0],
    }
    difference = np.abs(sides["ours"]() - sides["upstream"]()).max()
    threads = torch.get_num_threads()
    title = f"OpenVLA-OFT, a chunk of {CHUNK}; largest difference {difference:.1e}"
    seconds = interleaved(sides, rounds, title, warmup=2, before=lambda: torch.set_num_threads(threads))
    print("  actions/s: " + ", ".join(f"{name} {CHUNK * 1e3 / seconds.ms(name):.0f}" for name in sides))
    gpu = engine.device.type == "cuda"
    ratio = seconds.ratio("upstream", "ours")
    figure("openvla_oft_over_upstream", ratio, "ratio", "none" if gpu else ">=1.2", quick=True)


if __name__ == "__main__":
    main()
