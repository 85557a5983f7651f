"""Parts of bench/gpu.py in the environment libero: frames by the GPU and by the CPU."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from bench.parts.gpu_plan import Plan, Skip
from services.libero.assets import sources
from services.libero.simulator import runtime, suites

STEPS = 60


def egl_gpu(plan: Plan) -> None:
    """Frames of libero_goal by the GPU through EGL."""
    render_episode(plan, "gpu")


def egl_cpu(plan: Plan) -> None:
    """Frames of libero_goal by the CPU (llvmpipe), and the share of pixels that differ from the GPU's."""
    render_episode(plan, "cpu")


def render_episode(plan: Plan, render: str) -> None:
    """Play one episode of fixed actions with a frame of 256 x 256 at every step; store some frames."""
    count = 5 if plan.tiny else STEPS
    with tempfile.TemporaryDirectory() as directory:
        source = sources.resolve("kit", Path(directory))
        try:
            active = runtime.configure(source.path, Path(directory), render)
        except RuntimeError as error:
            raise Skip(str(error)) from error
        from services.libero.simulator.env import LiberoEnv  # only after the renderer is selected

        env = LiberoEnv(source.path)
        task = suites.load_suite("libero_goal").tasks[0]
        env.load_task(task)
        env.reset(0, suites.init_states(task)[0])
        for _ in range(3):  # numba compiles, OpenGL takes textures
            env.step(np.zeros(7))
            env.render()
        print(f"{'llvmpipe' if active.gl.software else 'GPU'} by {active.gl.backend}")
        frames, started = [], time.perf_counter()
        for action in 0.3 * np.sin(np.arange(count)[:, None] / 9 + np.arange(7)):
            env.step(action)
            frames.append(env.render())
        rate = count / (time.perf_counter() - started)
        started = time.perf_counter()
        for _ in range(count):
            env.render()
        print(f"  a frame alone {1e3 * (time.perf_counter() - started) / count:.2f} ms")
        plan.figure(f"gpu_egl_{render}", rate, "steps/s")
        env.close()
    if plan.out:
        plan.out.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(plan.out / f"frames-{render}.npz", frames=np.stack(frames[::5]), steps_per_s=rate)
    stored = [plan.out / f"frames-{name}.npz" for name in ("gpu", "cpu")] if plan.out else []
    if stored and all(path.is_file() for path in stored):  # one may be of another machine
        with np.load(stored[0]) as gpu, np.load(stored[1]) as cpu:
            apart = np.abs(gpu["frames"].astype(int) - cpu["frames"].astype(int)).max(axis=-1)
            plan.figure("gpu_egl_over_llvmpipe", float(gpu["steps_per_s"] / cpu["steps_per_s"]), "ratio")
        print(f"  pixels that differ {(apart > 0).mean():.2%}, by more than 8 levels {(apart > 8).mean():.3%}")
        plan.figure("gpu_egl_pixels_differ_8", float((apart > 8).mean()), "share")
