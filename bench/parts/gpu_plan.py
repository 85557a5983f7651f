"""What the parts of bench/gpu.py share: the plan, the device, and timing. A part is a function of its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.common import figure, interleaved


class Skip(Exception):
    """Something that a part needs is missing; the message says what."""


@dataclass(frozen=True)
class Plan:
    """What was requested: tiny models, timed rounds of each variant, where frames are stored."""

    tiny: bool
    rounds: int
    out: Path | None

    def device_and_dtype(self) -> tuple[Any, Any]:
        """Return the GPU and bf16, with --tiny the CPU and fp32 where there is no GPU. Raises Skip for no GPU."""
        import torch

        if torch.cuda.is_available():
            device, dtype = torch.device("cuda:0"), torch.bfloat16
            print(f"torch {torch.__version__} on {torch.cuda.get_device_name(device)}, {dtype}")
            return device, dtype
        if not self.tiny:
            raise Skip(f"torch {torch.__version__} sees no NVIDIA GPU; --tiny runs on a CPU")
        return torch.device("cpu"), torch.float32

    def require_flash(self) -> None:
        """Raise Skip with the reason where flash-attn cannot run."""
        from vla_modelkit.builds import flash_obstacle

        if obstacle := flash_obstacle(*self.device_and_dtype()):
            raise Skip(obstacle)

    def timed(self, variants: dict[str, Callable[[], object]]) -> dict[str, float]:
        """Return each variant's median milliseconds, measured in turns after two untimed turns, and print them."""
        seconds = interleaved(variants, self.rounds, warmup=2)
        for name, values in seconds.items():
            print(f"  {name:32} {seconds.ms(name):9.2f} ms, slowest {1e3 * max(values):9.2f}", flush=True)
        return {name: seconds.ms(name) for name in seconds}

    def figure(self, name: str, value: float, unit: str, target: str = "none") -> None:
        """Print a figure; with --tiny it has no target."""
        figure(name, value, unit, "none" if self.tiny else target, quick=True)

    def memory_figure(self, name: str, peak: float, estimate: float) -> None:
        """Print how far the estimate of a peak (bytes) is from it."""
        print(f"  memory: {peak / 1e9:.2f} GB at most, estimated {estimate / 1e9:.2f}")
        self.figure(name, abs(peak / estimate - 1), "share", "<=0.1")


def synchronize(device: Any) -> None:
    """Wait for a GPU's work."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_images(count: int, side: int) -> np.ndarray:
    """Return uint8 [count, side, side, 3]."""
    return np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)
