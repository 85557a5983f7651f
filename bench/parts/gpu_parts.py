"""Parts of bench/gpu.py. Each is a function of the part's name; it imports what it needs and prints FIGURE lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.common import figure, interleaved, median_ms

PROMPT = [1, *range(300, 318), 29871]  # token ids, as many as LIBERO's instructions have
BATCHES = (1, 2, 4, 8, 16)
VIEWS, GR00T_STEPS, ROBOT = 2, 4, 31  # two cameras, Euler steps, the embodiment "new_embodiment"
EPISODE_STEPS = 60


class Skip(Exception):
    """Something that a part needs is missing; the message says what."""


@dataclass(frozen=True)
class Plan:
    """What was requested: tiny models, timed rounds of each variant, where frames are stored."""

    tiny: bool
    rounds: int
    out: Path | None


def device_and_dtype(plan: Plan):
    """Return the GPU and bf16, with --tiny the CPU and fp32 where there is no GPU. Raises Skip for no GPU."""
    import torch

    if torch.cuda.is_available():
        device, dtype = torch.device("cuda:0"), torch.bfloat16
        print(f"torch {torch.__version__} on {torch.cuda.get_device_name(device)}, {dtype}")
    elif plan.tiny:
        device, dtype = torch.device("cpu"), torch.float32
    else:
        raise Skip(f"torch {torch.__version__} sees no NVIDIA GPU; --tiny runs on a CPU")
    return device, dtype


def require_flash(plan: Plan) -> None:
    """Raise Skip with the reason where flash-attn cannot run."""
    from vla_modelkit.flash import flash_obstacle

    if obstacle := flash_obstacle(*device_and_dtype(plan)):
        raise Skip(obstacle)


def load_openvla(
    config: Any, source: Any, device: Any, dtype: Any, attention_name: str = "sdpa", quant: str = "none"
) -> Any:
    """Return OpenVLA's network with weights of `source`, and room in its cache for what its engine asks."""
    from services.openvla.decoding.engine import capacity
    from services.openvla.model import attention
    from services.openvla.model.openvla import load_model
    from services.openvla.model.vision import patch_count

    implementation, _ = attention.choose(attention_name, device, dtype)
    return load_model(config, source, dtype, device, implementation, capacity(patch_count(config.towers)), quant)


def openvla(plan: Plan, attention_name: str = "sdpa") -> None:
    """OpenVLA 7B: one stream and its parts, CUDA graphs against none, batches, memory against its estimate."""
    import torch

    from bench.parts.openvla_measure import rooflines
    from services.openvla.checkpoint import tiny
    from services.openvla.decoding.engine import Engine, row_bytes
    from services.openvla.model.openvla import model_shapes, weight_bytes
    from vla_modelkit.graphs import Eager
    from vla_modelkit.memory import reset_peak, used_bytes
    from vla_modelkit.weights import MadeUp

    device, dtype = device_and_dtype(plan)
    config = tiny.SPECS["tiny" if plan.tiny else "full"].model_config()
    source = MadeUp(model_shapes(config), device)
    model = load_openvla(config, source, device, dtype, attention_name)
    reset_peak(device)
    engine = Engine(model, max_batch=BATCHES[-1])
    images = random_images(BATCHES[-1], config.towers[0].image_size)

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
    ms = timed(
        plan,
        {
            "one stream": lambda: engine.generate(images[:1], [PROMPT]),
            "one stream, all drafts right": lambda: engine.generate(images[:1], [PROMPT], drafts),
            "one stream, no CUDA graphs": lambda: eager.generate(images[:1], [PROMPT]),
            "vision alone": vision,
        },
    )
    prefill, stream = ms["one stream, all drafts right"], ms["one stream"]
    figure(f"{prefix}_one_stream", stream, "ms", "none" if plan.tiny else "<=45", quick=True)
    figure(f"{prefix}_one_stream_vision", ms["vision alone"], "ms", "none")
    figure(f"{prefix}_one_stream_prefill", prefill - ms["vision alone"], "ms", "none")  # without vision
    figure(f"{prefix}_one_stream_decode", stream - prefill, "ms", "none")  # six passes
    figure(f"{prefix}_graphs_over_none", ms["one stream, no CUDA graphs"] / stream, "ratio", "none")
    for count in BATCHES:
        batch_ms = timed(plan, {f"batch {count}": lambda n=count: engine.generate(images[:n], [PROMPT] * n)})
        rate = 1e3 * count / batch_ms[f"batch {count}"]
        target = ">=150" if count == BATCHES[-1] and not plan.tiny else "none"
        figure(f"{prefix}_batch_{count}", rate, "actions/s", target, quick=True)
    if device.type == "cuda":
        estimate = weight_bytes(config, dtype) + BATCHES[-1] * row_bytes(model)
        peak = used_bytes(device)
        print(f"  memory: {peak / 1e9:.2f} GB at most, estimated {estimate / 1e9:.2f}")
        figure(
            f"{prefix}_memory_error", abs(peak / estimate - 1), "share", "none" if plan.tiny else "<=0.1", quick=True
        )
        floor = rooflines(engine, device, rows=1, prompt=len(PROMPT))
        print(f"  floor {floor.total_ms:.2f} ms: {floor.bandwidth / 1e12:.2f} TB/s, {floor.peak / 1e12:.0f} Tflop/s")
        figure(f"{prefix}_one_stream_over_floor", stream / floor.total_ms, "ratio", "<=3", quick=True)


def openvla_flash(plan: Plan) -> None:
    """The same with the package flash-attn."""
    require_flash(plan)
    openvla(plan, "flash")


def openvla_nf4(plan: Plan) -> None:
    """OpenVLA 7B with weights of four bits: one stream."""
    import bitsandbytes
    import torch

    from services.openvla.checkpoint import tiny
    from services.openvla.decoding.engine import Engine
    from services.openvla.model.openvla import model_shapes
    from vla_modelkit.weights import MadeUp

    device, dtype = device_and_dtype(plan)
    dtype = dtype if device.type == "cuda" else torch.bfloat16
    config = tiny.SPECS["tiny" if plan.tiny else "full"].model_config()
    source = MadeUp(model_shapes(config), device)
    model = load_openvla(config, source, device, dtype, quant="nf4")
    engine = Engine(model, max_batch=1, width=1)
    images = random_images(1, config.towers[0].image_size)
    print(f"bitsandbytes {bitsandbytes.__version__}, weights of {sum(model.memory().values()) / 1e9:.2f} GB")
    ms = timed(plan, {"one stream, nf4": lambda: engine.generate(images, [PROMPT])})
    figure("gpu_openvla_nf4_one_stream", ms["one stream, nf4"], "ms", "none")
    figure("gpu_openvla_nf4_weights", sum(model.memory().values()) / 1e9, "GB", "none")


def openvla_fp32(plan: Plan) -> None:
    """Tokens of a tiny OpenVLA in fp32: the GPU's with CUDA graphs equal the CPU's, one by one and in a batch."""
    import torch

    from services.openvla.checkpoint import tiny
    from services.openvla.decoding.engine import Engine
    from services.openvla.model.openvla import model_shapes
    from vla_modelkit.weights import MadeUp

    device, _ = device_and_dtype(plan)
    config = tiny.SPECS["tiny"].model_config()
    source = MadeUp(model_shapes(config), torch.device("cpu"))

    def tokens(where: torch.device) -> np.ndarray:
        engine = Engine(load_openvla(config, source, where, torch.float32), max_batch=8)
        singles = [engine.generate(image[None], [PROMPT]).tokens[0] for image in images]
        return np.stack([*singles, *engine.generate(images[:8], [PROMPT] * 8).tokens])

    images = random_images(32, config.towers[0].image_size)
    equal = (tokens(device) == tokens(torch.device("cpu"))).all(axis=1).mean()
    figure("gpu_openvla_fp32_tokens_equal", float(equal), "share", ">=1", quick=True)


def gr00t(plan: Plan, attention_name: str = "sdpa") -> None:
    """GR00T N1.5: a chunk of two cameras, CUDA graphs against none, a batch of 16, memory against its estimate."""
    from services.gr00t.checkpoint.config import N1_5
    from services.gr00t.checkpoint.tiny import TINY
    from services.gr00t.model.attention import choose
    from services.gr00t.model.engine import TEXT_TOKENS, Engine
    from services.gr00t.model.loading import load_model, row_bytes, shapes, weight_bytes
    from vla_modelkit.memory import reset_peak, used_bytes
    from vla_modelkit.weights import MadeUp

    device, dtype = device_and_dtype(plan)
    config = TINY.model() if plan.tiny else N1_5
    attention = choose(attention_name, str(device), dtype)
    model = load_model(config, MadeUp(shapes(config), device), device, dtype, attention.implementation)
    reset_peak(device)
    rows, slots = gr00t_rows(config, BATCHES[-1])
    engine = Engine(model, ROBOT, slots, GR00T_STEPS, BATCHES[-1], attention.fixed_shapes)
    engine.warm_up(rows[0].ids)
    eager = Engine(model, ROBOT, slots, GR00T_STEPS, 1, fixed_shapes=False)
    noise = random_noise(config, BATCHES[-1])
    ms = timed(
        plan,
        {
            "one chunk": lambda: engine.infer(rows[:1], noise[:1]),
            "one chunk, no CUDA graphs": lambda: eager.infer(rows[:1], noise[:1]),
            "batch of 16": lambda: engine.infer(rows, noise),
        },
    )
    prefix = f"gpu_gr00t{'' if attention_name == 'sdpa' else '_' + attention_name}"
    figure(f"{prefix}_chunk", ms["one chunk"], "ms", "none" if plan.tiny else "<=20", quick=True)
    figure(f"{prefix}_graphs_over_none", ms["one chunk, no CUDA graphs"] / ms["one chunk"], "ratio", "none")
    figure(f"{prefix}_batch_16", 16e3 / ms["batch of 16"], "chunks/s", "none")
    if device.type == "cuda":
        row = row_bytes(config, len(rows[0].ids) + TEXT_TOKENS, VIEWS, dtype)
        estimate, peak = weight_bytes(config, dtype) + BATCHES[-1] * row, used_bytes(device)
        print(f"  memory: {peak / 1e9:.2f} GB at most with graphs for batches up to 16, estimated {estimate / 1e9:.2f}")
        target = "none" if plan.tiny else "<=0.1"
        figure(f"{prefix}_memory_error", abs(peak / estimate - 1), "share", target, quick=True)


def gr00t_flash(plan: Plan) -> None:
    """The same with the package flash-attn."""
    require_flash(plan)
    gr00t(plan, "flash")


def gr00t_fp32(plan: Plan) -> None:
    """Actions of a tiny GR00T in fp32: the GPU's with CUDA graphs against the CPU's."""
    import torch

    from services.gr00t.checkpoint.tiny import TINY
    from services.gr00t.model.engine import Engine
    from services.gr00t.model.loading import load_model, shapes
    from vla_modelkit.weights import MadeUp

    device, _ = device_and_dtype(plan)
    config, cpu = TINY.model(), torch.device("cpu")
    source = MadeUp(shapes(config), cpu)
    rows, slots = gr00t_rows(config, 4)
    noise = random_noise(config, 4)

    def actions(where: torch.device) -> np.ndarray:
        engine = Engine(load_model(config, source, where, torch.float32, "sdpa"), ROBOT, slots, GR00T_STEPS, 4)
        engine.warm_up(rows[0].ids)
        return engine.infer(rows, noise)

    apart = np.abs(actions(device) - actions(cpu)).max()
    figure("gpu_gr00t_fp32_apart", float(apart), "action", "<=1e-4", quick=True)


def gr00t_training(plan: Plan) -> None:
    """Fine-tuning of GR00T N1.5 on random batches: steps per second, and peak memory against the estimate."""
    import tempfile

    import torch

    from services.gr00t.checkpoint.config import N1_5
    from services.gr00t.checkpoint.tiny import TINY
    from services.gr00t.model.loading import shapes
    from services.gr00t.training.memory import TrainingMemory
    from services.gr00t.training.network import FlowLoss, load
    from services.gr00t.training.samples import Batch
    from services.gr00t.training.settings import Finetune
    from services.gr00t.training.trainer import Trainer
    from vla_modelkit.memory import reset_peak, used_bytes
    from vla_modelkit.training.machine import choose_machine
    from vla_modelkit.weights import MadeUp

    device, _ = device_and_dtype(plan)
    machine = choose_machine(str(device), "bf16" if device.type == "cuda" else "fp32")
    config = TINY.model() if plan.tiny else N1_5
    for kind, changes in (("whole", {}), ("around", {"tune_diffusion_model": False}), ("lora", {"lora_rank": 16})):
        count = 2 if plan.tiny else 8
        settings = Finetune("random", batch_size=count, **changes)
        reset_peak(device)
        model = load(config, MadeUp(shapes(config), device), ROBOT, settings, device, machine.dtype or torch.float32)
        rows, slots = gr00t_rows(config, count)
        state = np.zeros((count, config.head.state_dim), np.float32)
        batch = Batch(
            pictures=torch.from_numpy(np.stack([row.pictures for row in rows])),
            ids=torch.tensor([row.ids for row in rows]),
            lengths=torch.full((count,), len(rows[0].ids)),
            state=torch.from_numpy(state),
            actions=random_noise(config, count) / 3,
            noise=random_noise(config, count),
            times=torch.linspace(0, 0.99, count),
        )
        with tempfile.TemporaryDirectory() as directory:
            loss = FlowLoss(model, torch.as_tensor(slots, device=device), 7)
            trainer = Trainer(settings, machine, loss, Path(directory), {})

            def step(trainer: Trainer = trainer, batch: Batch = batch) -> None:
                trainer.learn(batch)
                synchronize(device)

            ms = timed(plan, {f"a step of {count}, {kind}": step})
        figure(f"gpu_gr00t_training_{kind}", 1e3 * count / ms[f"a step of {count}, {kind}"], "samples/s", "none")
        if device.type == "cuda":
            estimate, peak = TrainingMemory(config, VIEWS).estimate(settings).total, used_bytes(device)
            peak += torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved()
            print(f"  memory: {peak / 1e9:.2f} GB at most with CUDA's own, estimated {estimate / 1e9:.2f}")
            target = "none" if plan.tiny else "<=0.1"
            figure(f"gpu_gr00t_training_{kind}_memory_error", abs(peak / estimate - 1), "share", target, quick=True)
        del trainer, loss, model, step
        if device.type == "cuda":
            torch.cuda.empty_cache()


def minivla(plan: Plan) -> None:
    """Training steps per second of mini-VLA, batches of 64."""
    from services.minivla import train
    from services.minivla.config import Config
    from vla_modelkit.training.machine import choose_machine

    device, _ = device_and_dtype(plan)
    for size in ("tiny",) if plan.tiny else ("small", "base"):
        config = Config(data="made-up", size=size, device=str(device))
        run = train.get_training(config, choose_machine(config.device), random_demonstrations(config))
        generator = np.random.default_rng(0)

        def steps(count: int) -> None:
            import torch

            for _ in range(count):
                train.train_step(run, torch.from_numpy(generator.integers(0, len(run.data), config.batch_size)))  # noqa: B023
            synchronize(device)

        count = 2 if plan.tiny else 20
        ms = timed(plan, {f"{size}, {count} steps": lambda: steps(count)})  # noqa: B023
        figure(f"gpu_minivla_{size}", 1e3 * count / ms[f"{size}, {count} steps"], "steps/s", "none")


def random_demonstrations(config: Any) -> Any:
    """Return 2,000 steps of noise, of the shapes that a LIBERO data set gives mini-VLA."""
    import torch

    from services.minivla.data import LIBERO, DatasetStats, Scaling, TrainingSteps, encode
    from services.ws_mdl.transformer.tokenization import train_tokenizer

    sentence, steps, generator = "pick up the alphabet soup and place it in the basket", 2000, torch.Generator()
    tokenizer = train_tokenizer([sentence], "word", 1, 8000)
    learned = DatasetStats(
        "random", "none", 1, "", tuple(LIBERO.cameras), action=Scaling((0.0,) * 7, (1.0,) * 7),
        state=Scaling((0.0,) * 8, (1.0,) * 8), tokenizer=tokenizer.to_str(),
    )  # fmt: skip
    size = (steps, 2, 3, config.side, config.side)
    images = torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)
    state, action = torch.randn(steps, 8, generator=generator), torch.rand(steps, 7, generator=generator) * 2 - 1
    tasks, ends = torch.zeros(steps, dtype=torch.long), torch.full((steps,), steps)
    tokens, pad = encode(tokenizer, [sentence]), tokenizer.token_to_id("[PAD]")
    return TrainingSteps(learned, images, state, action, tokens, tasks, ends, pad)


def egl_gpu(plan: Plan) -> None:
    """Frames of libero_goal by the GPU through EGL."""
    render_episode(plan, "gpu")


def egl_cpu(plan: Plan) -> None:
    """Frames of libero_goal by the CPU (llvmpipe), and the share of pixels that differ from the GPU's."""
    render_episode(plan, "cpu")


def render_episode(plan: Plan, render: str) -> None:
    """Play one episode of fixed actions with a frame of 256 x 256 at every step; store some frames."""
    import tempfile

    from services.libero.assets import sources
    from services.libero.simulator import runtime, suites

    with tempfile.TemporaryDirectory() as directory:
        source = sources.resolve("kit", Path(directory))
        try:
            active = runtime.configure(source.path, Path(directory), render)
        except RuntimeError as error:
            raise Skip(str(error)) from error
        from services.libero.simulator.env import LiberoEnv

        env = LiberoEnv(source.path)
        task = suites.load_suite("libero_goal").tasks[0]
        env.load_task(task)
        env.reset(0, suites.init_states(task)[0])
        for _ in range(3):  # numba compiles, OpenGL takes textures
            env.step(np.zeros(7))
            env.render()
        print(f"{'llvmpipe' if active.gl.software else 'GPU'} by {active.gl.backend}")
        count = 5 if plan.tiny else EPISODE_STEPS
        actions = 0.3 * np.sin(np.arange(count)[:, None] / 9 + np.arange(7))
        frames, started = [], time.perf_counter()
        for action in actions:
            env.step(action)
            frames.append(env.render())
        seconds = time.perf_counter() - started
        started = time.perf_counter()
        for _ in range(count):
            env.render()
        print(f"  a frame alone {1e3 * (time.perf_counter() - started) / count:.2f} ms")
        figure(f"gpu_egl_{render}", count / seconds, "steps/s", "none")
        env.close()
    if plan.out:
        plan.out.mkdir(parents=True, exist_ok=True)
        rate = count / seconds
        np.savez_compressed(plan.out / f"frames-{render}.npz", frames=np.stack(frames[::5]), steps_per_s=rate)
        compare_frames(plan.out / "frames-gpu.npz", plan.out / "frames-cpu.npz")


def compare_frames(gpu: Path, cpu: Path) -> None:
    """Print the share of pixels that differ, where frames of both are stored, also of another machine's."""
    if not (gpu.is_file() and cpu.is_file()):
        return
    with np.load(gpu) as by_gpu, np.load(cpu) as by_cpu:
        gpu_frames, cpu_frames = (stored["frames"].astype(int) for stored in (by_gpu, by_cpu))
        ratio = float(by_gpu["steps_per_s"] / by_cpu["steps_per_s"])
    figure("gpu_egl_over_llvmpipe", ratio, "ratio", "none")
    if gpu_frames.shape == cpu_frames.shape:
        apart = np.abs(gpu_frames - cpu_frames).max(axis=-1)
        print(f"  pixels that differ {(apart > 0).mean():.2%}, by more than 8 levels {(apart > 8).mean():.3%}")
        figure("gpu_egl_pixels_differ_8", float((apart > 8).mean()), "share", "none")


def timed(plan: Plan, variants: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return each variant's median milliseconds, measured in turns after two untimed turns, and print them."""
    seconds = interleaved(variants, plan.rounds, warmup=2)
    ms = {name: median_ms(values) for name, values in seconds.items()}
    for name, values in seconds.items():
        print(f"  {name:32} {ms[name]:9.2f} ms, slowest {1e3 * max(values):9.2f}", flush=True)
    return ms


def synchronize(device: Any) -> None:
    """Wait for a GPU's work."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_images(count: int, side: int) -> np.ndarray:
    """Return uint8 [count, side, side, 3]."""
    return np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)


def random_noise(config: Any, count: int):
    """Return float32 noise [count, horizon, action] on the CPU, from which GR00T's actions start."""
    import torch

    shape = (count, config.head.horizon, config.head.action_dim)
    return torch.from_numpy(np.random.default_rng(1).normal(size=shape).astype(np.float32))


def gr00t_rows(config: Any, count: int) -> tuple[Sequence[Any], np.ndarray]:
    """Return random observations of two cameras as GR00T's engine takes them, and where their image tokens lie."""
    from services.gr00t.model.engine import Prepared

    draw, side, patches = np.random.default_rng(0), config.vision["image_size"], config.patches
    slots = np.concatenate([20 + view * (patches + 4) + np.arange(patches) for view in range(VIEWS)])
    ids = draw.integers(0, 1000, slots[-1] + 24).tolist()
    images = draw.integers(0, 256, (count, VIEWS, side, side, 3), np.uint8)
    states = draw.normal(size=(count, 8)).astype(np.float32)
    return [Prepared(image, ids, state) for image, state in zip(images, states, strict=True)], slots
