"""What every practice lab's settings have in common; a lab's `Config` adds its own and other defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from services.ws_mdl.settings import RunSettings, keep_option, name_option, preload_option
from vla_common.options import device_option, option

# What a run that goes on may change: it says where and how long, not what is learned.
FREE = ("epochs", "device", "precision", "name", "preload", "keep", "save_every", "measure_every")


@dataclass
class PracticeSettings(RunSettings):
    """Settings of a practice lab's run. A lab's Config says LAB, and the run's name where none is given."""

    epochs: int = option(20, "passes over what is learned from", "[1, inf)")
    batch_size: int = option(64, "examples", "[1, inf)")
    lrate: float = option(1e-3, "the highest; after the warm-up it falls like a cosine to 0", "(0, inf)")
    warmup: int = option(100, "batches in which the rate rises", "[0, inf)")
    weight_decay: float = option(0.01, "AdamW's, of matrices alone", "[0, inf)")
    clip: float = option(1.0, "longest gradient", "(0, inf)")
    ema: float = option(0.99, "of the averaged weights that are measured and shown; 0: none", "[0, 1]")
    seed: int = option(0, "of weights, order and all else that is drawn")

    device: str = device_option()
    precision: Literal["auto", "fp32", "bf16"] = option("auto", "auto: bf16 where the device computes in it")

    name: str | None = name_option()
    preload: str = preload_option()
    keep: int = keep_option()
    save_every: int = option(5, "epochs between two weight files", "[1, inf)")
    measure_every: int = option(1, "epochs between two measurements on what is held out", "[1, inf)")

    @property
    def FIXED(self) -> tuple[str, ...]:
        """The settings that a run's weights depend on."""
        return tuple(field.name for field in fields(self) if field.name not in FREE)

    def check_heads(self, d_model: int, h: int) -> None:
        """Raises ValueError where a width cannot be divided among heads, or has no pairs of sine and cosine."""
        if d_model % h != 0 or d_model // h % 2 != 0:
            raise ValueError(f"d_model {d_model} cannot be divided among h = {h} heads of an even width; choose others")
