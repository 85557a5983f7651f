"""Parts of bench/openvla.py: recorded actions as tokens, decoding passes, rooflines, the service's own time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bench.common import served
from services.openvla.checkpoint.statistics import ACTION_TOKENS
from services.openvla.decoding.actions import ActionCodec, normalise
from services.openvla.decoding.drafts import BRANCHES, Drafter
from services.openvla.decoding.engine import Engine
from services.openvla.decoding.speculative import DecodedRow

RECORDED = Path(__file__).resolve().parents[2] / "tests" / "openvla" / "data" / "oracle-libero_goal.npz"


def recorded_tokens(codec: ActionCodec) -> Mapping[str, np.ndarray]:
    """Return episode -> int64 [steps, 7]: the oracle's actions, one episode per task of libero_goal.

    Normalised as OpenVLA's training data is: by the 1 % and 99 % quantiles of all of them, the gripper as 0 and 1.
    """
    with np.load(RECORDED, allow_pickle=False) as stored:
        episodes = {name: stored[name].astype(np.float64) for name in stored.files}
    for actions in episodes.values():
        actions[:, 6] = (1 - np.sign(actions[:, 6])) / 2  # LIBERO: +1 closes; OpenVLA: 1 is open
    low, high = np.quantile(np.concatenate(list(episodes.values())), (0.01, 0.99), axis=0)
    stats = {"q01": low, "q99": high, "mask": [True] * 6 + [False]}
    return {name: codec.tokens(normalise(actions, stats)) for name, actions in episodes.items()}


def jittered(recorded: Mapping[str, np.ndarray], codec: ActionCodec, bins: int) -> Mapping[str, np.ndarray]:
    """Return the episodes with uniform noise of up to ±`bins` bins added to all tokens but the gripper's.

    The oracle's actions are smoother than a trained model's, which this imitates.
    """
    draw, low, high = np.random.default_rng(0), codec.vocab_size - codec.bins, codec.vocab_size - 1

    shaken = {}
    for name, tokens in recorded.items():
        noisy = tokens[:, :6] + draw.integers(-bins, bins + 1, (len(tokens), 6))
        shaken[name] = np.concatenate([np.clip(noisy, low, high), tokens[:, 6:]], axis=1)
    return shaken


def decode_passes(recorded: np.ndarray, drafter: Drafter, width: int) -> tuple[int, np.ndarray]:
    """Return (decoding passes, tokens [steps, 7]) of a model that chooses the recorded tokens, drafted by `drafter`.

    The simulated model returns the next recorded token after a recorded prefix, and the token -1 after any other. The
    bookkeeping is the engine's own.
    """
    made, passes, branches = [], 0, BRANCHES if width > 1 else 0
    for target in recorded:
        row = DecodedRow(drafter.propose("session"))
        chain = row.draft[0, : ACTION_TOKENS - 1]
        row.accept_prefill(np.where(np.cumsum(np.r_[False, chain != target[:-1]]), -1, target))
        while not row.done:
            cached, chain, tokens = row.cached, row.chain(width), row.branches(width, branches)
            chosen = [_after(cached, chain[: end + 1], target) for end in range(width)]
            _, branch = row.accept(np.array(chosen), branches)
            if branch is not None:
                before = chain[: branch % (width - 1) + 1]
                row.accept_branch(_after(cached, np.r_[before, tokens[branch]], target))
            passes += 1
        made.append(row.tokens)
        drafter.observe("session", np.array(row.tokens))
    return passes, np.array(made)


def _after(cached: int, tokens: np.ndarray, recorded: np.ndarray) -> int:
    """Return the simulated model's token after `cached` recorded ones and `tokens`."""
    end = cached + len(tokens)
    return int(recorded[end]) if end < ACTION_TOKENS and np.array_equal(tokens, recorded[cached:end]) else -1


def recorded_drafts(tokens: np.ndarray, count: int, jitter: int) -> list[np.ndarray]:
    """Return `count` draft trees int64 [1 + BRANCHES, 7] for a step with tokens `tokens` [7].

    Their hits are those of the drafts for recorded steps with `jitter` bins of noise: in the chain, in a branch, or
    none.
    """
    codec, made = ActionCodec(), []
    low, bins = codec.vocab_size - codec.bins, codec.bins
    misses = [low + (tokens - low + 1 + shift) % bins for shift in range(1 + BRANCHES)]
    for episode in jittered(recorded_tokens(codec), codec, jitter).values():
        drafter = Drafter(codec)
        for step in episode:
            hits = drafter.propose("session") == step
            made.append(np.where(hits, tokens, np.stack(misses)))
            drafter.observe("session", step)
    return [made[index * len(made) // count] for index in range(count)]


@dataclass(frozen=True)
class Roofline:
    """The minimum time of one action: bytes over bandwidth or operations over peak, whichever is larger."""

    prompt_ms: float
    decode_ms: float
    bandwidth: float  # bytes/s
    peak: float  # operations/s

    @property
    def total_ms(self) -> float:
        """Prompt and six decoding passes."""
        return self.prompt_ms + self.decode_ms


def rooflines(engine: Engine, device: torch.device, rows: int, prompt: int) -> Roofline:
    """Return the roofline of one batch without drafts, with bandwidth and peak measured on this machine."""
    memory, size = engine.model.memory(), engine.model.llama.embed.element_size()
    config, patches = engine.model.config.llama, engine.model.patches
    is_gpu, side = device.type == "cuda", 8192 if device.type == "cuda" else 1024
    data = torch.ones(2**30 if is_gpu else 2**26, dtype=torch.float32, device=device)
    bandwidth = data.numel() * 4 / _best_s(lambda: data.sum(), device)  # weights are read, not written
    a, b = (torch.randn(side, side, device=device).to(engine.model.llama.embed.dtype) for _ in range(2))
    peak = 2 * side**3 / _best_s(lambda: a @ b, device)
    head = config.vocab_size * config.hidden_size * size
    blocks = memory["llama blocks"]
    seen = 2 * rows * patches * (memory["vision"] + memory["projector"]) / size
    read = 2 * rows * ((patches + prompt) * blocks + head) / size
    everything = memory["vision"] + memory["projector"] + blocks + head
    prompt_s = max((seen + read) / peak, everything / bandwidth)
    decode_s = 6 * max((blocks + head) / bandwidth, 2 * rows * (blocks + head) / size / peak)
    return Roofline(prompt_s * 1e3, decode_s * 1e3, bandwidth, peak)


def _best_s(work: Callable[[], object], device: torch.device, rounds: int = 8) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return best


def make_app(directory: str):
    """Return the application of a tiny checkpoint."""
    from services.openvla.service.loading import load_policy
    from services.openvla.service.settings import ModelSettings
    from vla_contract import create_app

    return create_app(lambda: load_policy(ModelSettings(checkpoint=directory)))


def service_overhead_ms(rounds: int) -> tuple[float, float]:
    """Return (median, 90th percentile) of a round trip minus the time in the model, in milliseconds."""
    import tempfile

    from services.openvla.checkpoint import tiny
    from vla_contract import Observation, PolicyClient

    with tempfile.TemporaryDirectory() as directory:
        # the image size of the 7B model, so that the image is not resized here either
        spec = tiny.TinySpec(timm_ids=tiny.MID.timm_ids, image_size=224, suites=("libero_goal",))
        tiny.write(Path(directory), spec)
        image = np.random.default_rng(0).integers(0, 256, (224, 224, 3), np.uint8)
        overheads = []
        with served(make_app, directory, timeout_s=120) as url, PolicyClient(url) as client:
            for step in range(rounds):
                observation = Observation({"agentview": image}, None, "put the bowl on the stove", "bench", step)
                spent = client.act(observation).timings_ms
                overheads.append(spent["round_trip"] - spent["model"])
    return float(np.median(overheads)), float(np.percentile(overheads, 90))
