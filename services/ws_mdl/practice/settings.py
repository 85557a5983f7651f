"""What every practice lab's settings have in common; a lab's `Config` adds its own and other defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from services.ws_mdl.settings import RunSettings

# What the numbers may be; `./lab train --set` reads it too, so it holds literals only.
ALLOWED = {
    "epochs": "[1, inf)", "batch_size": "[1, inf)", "lrate": "(0, inf)", "warmup": "[0, inf)",
    "weight_decay": "[0, inf)", "clip": "(0, inf)", "ema": "[0, 1]", "keep": "[0, inf)", "save_every": "[1, inf)",
    "measure_every": "[1, inf)",
}  # fmt: skip
# What a run that goes on may change: it says where and how long, not what is learned.
FREE = ("epochs", "device", "precision", "name", "preload", "keep", "save_every", "measure_every")


@dataclass
class PracticeSettings(RunSettings):
    """Settings of a practice lab's run. A lab's Config says LAB, and the run's name where none is given."""

    epochs: int = 20  # passes over what is learned from
    batch_size: int = 64  # examples
    lrate: float = 1e-3  # the highest; after the warm-up it falls like a cosine to 0
    warmup: int = 100  # batches in which the rate rises
    weight_decay: float = 0.01  # AdamW's, of matrices alone
    clip: float = 1.0  # longest gradient
    ema: float = 0.99  # of the averaged weights that are measured and shown; 0: none
    seed: int = 0  # of weights, order and all else that is drawn

    device: str = "auto"  # auto, cpu, cuda, cuda:1
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 where the device computes in it

    name: str | None = None  # of the run; default: what is learned from
    preload: str = "latest"  # go on from the newest weights, from epoch N as in "7", or "none": start anew
    keep: int = 3  # newest weight files to keep, 0 for all
    save_every: int = 5  # epochs between two weight files
    measure_every: int = 1  # epochs between two measurements on what is held out

    @property
    def FIXED(self) -> tuple[str, ...]:
        """The settings that a run's weights depend on."""
        return tuple(field.name for field in fields(self) if field.name not in FREE)

    def check(self, allowed: Mapping[str, str]) -> None:
        """Raises ValueError for a number outside its interval; those of `ALLOWED` here hold too."""
        super().check({**ALLOWED, **allowed})

    def check_heads(self, d_model: int, h: int) -> None:
        """Raises ValueError where a width cannot be divided among heads, or has no pairs of sine and cosine."""
        if d_model % h != 0 or d_model // h % 2 != 0:
            raise ValueError(f"d_model {d_model} cannot be divided among h = {h} heads of an even width; choose others")
