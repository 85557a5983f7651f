"""The device, number format and torchrun rank of a training run."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import distributed

from vla_common.counts import plural
from vla_modelkit.devices import choose_device
from vla_modelkit.threads import choose_threads, restore_threads


@dataclass(frozen=True)
class TrainingMachine:
    """A device, the format of its matrix products (None: float32), and this process's rank among `world`."""

    device: torch.device
    dtype: torch.dtype | None = None
    rank: int = 0
    world: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process prints, validates and saves."""
        return self.rank == 0

    def autocast(self) -> torch.autocast:
        """Return the context for matrix products in `dtype`."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None)

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run the body in the main process first, then in the rest."""
        if self.world > 1 and not self.is_main:
            distributed.barrier()
        yield
        if self.world > 1 and self.is_main:
            distributed.barrier()

    def all_reduce(self, *numbers: float) -> list[float]:
        """Return each number's sum over all processes, without synchronizing a GPU. Integers stay integers."""
        if self.world == 1:
            return list(numbers)
        values = torch.tensor(numbers)  # on the CPU: uses gloo
        total = _retained_tensor(len(numbers), values.dtype)
        total.copy_(values)
        distributed.all_reduce(total)
        return total.tolist()

    @property
    def threads(self) -> int | None:
        """The number of CPU threads, part of a run's state since sums depend on it. None on a GPU."""
        return torch.get_num_threads() if self.device.type == "cpu" else None

    def restore_threads(self, stored: int | None) -> None:
        """Restore the run's number of CPU threads; print a line if that is not possible."""
        if self.device.type == "cpu" and stored not in (None, threads := restore_threads(stored)) and self.is_main:
            print(f"{plural(threads, 'thread')} instead of {stored}: the last bits of sums can differ", flush=True)

    def __str__(self) -> str:
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else str(self.device)
        processes = f", {self.world} processes" if self.world > 1 else ""
        threads = f", {plural(self.threads, 'thread')}" if self.threads else ""
        return f"{name}, {'bf16' if self.dtype else 'fp32'}{threads}{processes}"


@functools.cache
def _retained_tensor(length: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor that is never freed.

    Gloo's thread may hold the last reference to a summed tensor. To free it, it takes Python's GIL inside a lock of its
    own; destroying the process group holds the GIL and waits for that lock: a deadlock.
    """
    return torch.empty(length, dtype=dtype)


def choose_dtype(device: torch.device, precision: str) -> torch.dtype | None:
    """Return bfloat16 or None (float32). "auto": bfloat16 if the device multiplies matrices faster in it."""
    is_fast = False
    if device.type == "cuda":
        is_fast = torch.cuda.get_device_capability(device) >= (8, 0)
    elif device.type == "cpu":
        names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # torch 2.2 has neither
        is_fast = any(getattr(torch.cpu, name, bool)() for name in names)
    return torch.bfloat16 if precision == "bf16" or (precision == "auto" and is_fast) else None


def choose_machine(device: str = "auto", precision: str = "auto") -> TrainingMachine:
    """Return this process's machine; under torchrun it joins the process group, on a CPU it uses the idle cores."""
    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    torch_device = choose_device(device, int(os.environ.get("LOCAL_RANK", 0)))
    if world > 1 and not distributed.is_initialized():
        if os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost"):  # one machine, whose host name may not resolve
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        backend = "cpu:gloo,cuda:nccl" if torch_device.type == "cuda" else "gloo"
        distributed.init_process_group(backend)
    if torch_device.type == "cpu":
        choose_threads()
    if torch_device.type == "cuda":
        torch.cuda.set_device(torch_device)
        torch.set_float32_matmul_precision("high")
    return TrainingMachine(torch_device, choose_dtype(torch_device, precision), rank, world)


def destroy_process_group() -> None:
    """Destroy the process group of torchrun: threads that still run at exit would abort the process.

    Distributed models must be freed before: a reducer with the last reference to the group would wait for the group's
    thread while holding the GIL, which that thread may need.
    """
    if distributed.is_initialized():
        gc.collect()  # such a model is part of cycles
        distributed.destroy_process_group()
