"""Parts of bench/gpu.py in the environment openvla."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from bench.common import figure
from bench.parts.gpu_plan import Plan, random_images, synchronize
from bench.parts.openvla_measure import rooflines
from services.openvla.checkpoint import tiny
from services.openvla.checkpoint.oft import STATE_SIZE, Oft
from services.openvla.decoding import parallel
from services.openvla.decoding.engine import Engine, capacity, row_bytes
from services.openvla.decoding.parallel import ParallelEngine
from services.openvla.model import attention
from services.openvla.model.oft import load_oft
from services.openvla.model.openvla import load_model, model_shapes, weight_bytes
from services.openvla.model.vision import patch_count
from vla_modelkit.graphs import Eager
from vla_modelkit.memory import reset_peak, used_bytes
from vla_modelkit.weights import MadeUp

PROMPT = [1, *range(300, 318), 29871]  # token ids, as many as LIBERO's instructions have
BATCHES = (1, 2, 4, 8, 16)


def spec_of(plan: Plan) -> tiny.TinySpec:
    """Return the shape of the network."""
    return tiny.SPECS["tiny" if plan.tiny else "full"]


def load(plan: Plan, device: Any, dtype: Any, attention_name: str = "sdpa", quant: str = "none") -> Any:
    """Return OpenVLA's network with random weights, and room in its cache for what its engine asks."""
    config = spec_of(plan).model_config()
    implementation, _ = attention.choose(attention_name, device, dtype)
    slots = capacity(patch_count(config.towers))
    return load_model(config, MadeUp(model_shapes(config), device), dtype, device, implementation, slots, quant)


def openvla(plan: Plan, attention_name: str = "sdpa") -> None:
    """OpenVLA 7B: one stream and its parts, CUDA graphs against none, batches, memory against its estimate."""
    device, dtype = plan.device_and_dtype()
    model = load(plan, device, dtype, attention_name)
    reset_peak(device)
    engine = Engine(model, max_batch=BATCHES[-1])
    images = random_images(BATCHES[-1], model.config.towers[0].image_size)

    tokens = engine.generate(images[:1], [PROMPT]).tokens
    drafts = np.stack([tokens] * 3, axis=1)
    prefix = f"gpu_openvla{'' if attention_name == 'sdpa' else '_' + attention_name}"
    vision_inputs = torch.from_numpy(images[:1]).to(device)

    def vision() -> None:
        with torch.inference_mode():
            engine.runner.run("vision", lambda pixels: (model.vision(pixels),), vision_inputs)
        synchronize(device)

    eager = Engine(model, max_batch=1, fixed_shapes=False)
    eager.runner = Eager()
    sides = {
        "one stream": lambda: engine.generate(images[:1], [PROMPT]),
        "one stream, all drafts right": lambda: engine.generate(images[:1], [PROMPT], drafts),
        "one stream, no CUDA graphs": lambda: eager.generate(images[:1], [PROMPT]),
        "vision alone": vision,
    }
    stream, prefill, without_graphs, vision_ms = plan.timed(sides).values()
    plan.figure(f"{prefix}_one_stream", stream, "ms", "<=45")
    plan.figure(f"{prefix}_one_stream_vision", vision_ms, "ms")
    plan.figure(f"{prefix}_one_stream_prefill", prefill - vision_ms, "ms")  # without vision
    plan.figure(f"{prefix}_one_stream_decode", stream - prefill, "ms")  # six passes
    plan.figure(f"{prefix}_graphs_over_none", without_graphs / stream, "ratio")
    for count in BATCHES:
        (batch_ms,) = plan.timed({f"batch {count}": lambda n=count: engine.generate(images[:n], [PROMPT] * n)}).values()
        target = ">=150" if count == BATCHES[-1] else "none"
        plan.figure(f"{prefix}_batch_{count}", 1e3 * count / batch_ms, "actions/s", target)
    if device.type == "cuda":
        estimate = weight_bytes(model.config, dtype) + BATCHES[-1] * row_bytes(model)
        plan.memory_figure(f"{prefix}_memory_error", used_bytes(device), estimate)
        floor = rooflines(engine, device, rows=1, prompt=len(PROMPT))
        print(f"  floor {floor.total_ms:.2f} ms: {floor.bandwidth / 1e12:.2f} TB/s, {floor.peak / 1e12:.0f} Tflop/s")
        figure(f"{prefix}_one_stream_over_floor", stream / floor.total_ms, "ratio", "<=3", quick=True)


def openvla_flash(plan: Plan) -> None:
    """The same with the package flash-attn."""
    plan.require_flash()
    openvla(plan, "flash")


def openvla_nf4(plan: Plan) -> None:
    """OpenVLA 7B with weights of four bits: one stream."""
    import bitsandbytes

    device, _ = plan.device_and_dtype()
    model = load(plan, device, torch.bfloat16, quant="nf4")
    engine = Engine(model, max_batch=1, width=1)
    images = random_images(1, model.config.towers[0].image_size)
    weights_gb = sum(model.memory().values()) / 1e9
    print(f"bitsandbytes {bitsandbytes.__version__}, weights of {weights_gb:.2f} GB")
    (ms,) = plan.timed({"one stream, nf4": lambda: engine.generate(images, [PROMPT])}).values()
    plan.figure("gpu_openvla_nf4_one_stream", ms, "ms")
    plan.figure("gpu_openvla_nf4_weights", weights_gb, "GB")


def openvla_oft(plan: Plan) -> None:
    """OpenVLA-OFT 7B with two images and the state: a chunk of eight actions, CUDA graphs against none, batches."""
    device, dtype = plan.device_and_dtype()
    reset_peak(device)
    engine = oft_engine(spec_of(plan), dtype, device)
    eager = ParallelEngine(engine.oft, max_batch=1, fixed_shapes=False)
    eager.runner = Eager()
    side = engine.model.config.towers[0].image_size
    images = random_images(2 * BATCHES[-1], side).reshape(BATCHES[-1], 2, side, side, 3)
    states = np.zeros((BATCHES[-1], STATE_SIZE))

    def chunks(count: int, runner: ParallelEngine = engine) -> np.ndarray:
        return runner.generate(images[:count], [PROMPT] * count, states[:count])

    chunk, without_graphs = plan.timed({"chunk": lambda: chunks(1), "no graphs": lambda: chunks(1, eager)}).values()
    plan.figure("gpu_openvla_oft_chunk", chunk, "ms", "<=60")
    plan.figure("gpu_openvla_oft_graphs_over_none", without_graphs / chunk, "ratio")
    for count in BATCHES:
        (batch_ms,) = plan.timed({f"batch {count}": functools.partial(chunks, count)}).values()
        plan.figure(f"gpu_openvla_oft_batch_{count}", 1e3 * count / batch_ms, "chunks/s")
    if device.type == "cuda":
        estimate = weight_bytes(engine.model.config, dtype) + BATCHES[-1] * parallel.row_bytes(engine.oft)
        plan.memory_figure("gpu_openvla_oft_memory_error", used_bytes(device), estimate)


def oft_engine(spec: tiny.TinySpec, dtype: torch.dtype, device: torch.device) -> ParallelEngine:
    """Return the engine of OpenVLA-OFT with an L1 head, two images and the state, over random weights."""
    config = replace(spec, oft=Oft()).model_config()
    source = MadeUp(model_shapes(config), device)
    slots = parallel.capacity(patch_count(config.towers), 2)
    kernel, _ = attention.choose("sdpa", device, dtype)
    return ParallelEngine(load_oft(load_model(config, source, dtype, device, kernel, slots), source, 2))


def openvla_fp32(plan: Plan) -> None:
    """Tokens of a tiny OpenVLA in fp32: the GPU's with CUDA graphs equal the CPU's, one by one and in a batch."""
    device, _ = plan.device_and_dtype()
    config, cpu = tiny.SPECS["tiny"].model_config(), torch.device("cpu")
    source, slots = MadeUp(model_shapes(config), cpu), capacity(patch_count(config.towers))
    images = random_images(32, config.towers[0].image_size)

    def tokens(where: torch.device) -> np.ndarray:
        implementation, _ = attention.choose("sdpa", where, torch.float32)
        engine = Engine(load_model(config, source, torch.float32, where, implementation, slots), max_batch=8)
        singles = [engine.generate(image[None], [PROMPT]).tokens[0] for image in images]
        return np.stack([*singles, *engine.generate(images[:8], [PROMPT] * 8).tokens])

    equal = (tokens(device) == tokens(cpu)).all(axis=1).mean()
    figure("gpu_openvla_fp32_tokens_equal", float(equal), "share", ">=1", quick=True)
