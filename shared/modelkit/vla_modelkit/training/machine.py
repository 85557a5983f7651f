"""Where a run computes: device, number format, and its place among several processes started by torchrun."""

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
class Machine:
    """A device, the format of its matrix products (None: float32), and which of `world` processes this is."""

    device: torch.device
    dtype: torch.dtype | None = None
    rank: int = 0
    world: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process prints, validates and saves."""
        return self.rank == 0

    def autocast(self) -> torch.autocast:
        """Returns the context in which matrix products have the machine's format."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None)

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Lets the main process do something before the others, which then find it done."""
        if self.world > 1 and not self.is_main:
            distributed.barrier()
        yield
        if self.world > 1 and self.is_main:
            distributed.barrier()

    def sums(self, *numbers: float) -> list[float]:
        """Returns each number's sum over all processes; no GPU is waited for. Integers stay integers."""
        if self.world == 1:
            return list(numbers)
        given = torch.tensor(numbers)  # on the CPU, so through gloo
        total = _lasting(len(numbers), given.dtype)
        total.copy_(given)
        distributed.all_reduce(total)
        return total.tolist()

    @property
    def threads(self) -> int | None:
        """In how many CPU threads the run computes: part of its state, since sums depend on it. None on a GPU."""
        return torch.get_num_threads() if self.device.type == "cpu" else None

    def restore_threads(self, stored: int | None) -> None:
        """Compute in as many threads as the run began with; print it where this differs."""
        if self.device.type == "cpu" and stored not in (None, threads := restore_threads(stored)) and self.is_main:
            print(f"{plural(threads, 'thread')} here, {stored} until now: the last bits of sums can differ", flush=True)

    def __str__(self) -> str:
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else str(self.device)
        processes = f", {self.world} processes" if self.world > 1 else ""
        threads = f", {plural(self.threads, 'thread')}" if self.threads else ""
        return f"{name}, {'bf16' if self.dtype else 'fp32'}{threads}{processes}"


@functools.cache
def _lasting(length: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor that Python never parts with.

    Gloo's thread may be the last to hold what it summed. To part with a tensor of Python's it waits for Python's lock,
    in a lock of its own; whoever ends the process group then has the former and waits for the latter, for good.
    """
    return torch.empty(length, dtype=dtype)


def choose_dtype(device: torch.device, precision: str) -> torch.dtype | None:
    """Returns bfloat16 or None (float32). "auto": bfloat16 where the device's own units compute in it."""
    if precision == "auto":
        return torch.bfloat16 if computes_bf16(device) else None
    return torch.bfloat16 if precision == "bf16" else None


def computes_bf16(device: torch.device) -> bool:
    """Returns whether matrix products in bfloat16 are faster than in float32 there."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def choose_machine(device: str = "auto", precision: str = "auto") -> Machine:
    """Returns where this process computes; under torchrun it joins the others. On a CPU it takes the idle cores."""
    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    chosen = choose_device(device, int(os.environ.get("LOCAL_RANK", 0)))
    if world > 1 and not distributed.is_initialized():
        if os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost"):  # one machine, whose name may not resolve
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
        distributed.init_process_group(backend)
    if chosen.type == "cpu":
        choose_threads()
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
        torch.set_float32_matmul_precision("high")
    return Machine(chosen, choose_dtype(chosen, precision), rank, world)


def leave() -> None:
    """Parts from the other processes of torchrun. Without it their threads may be cut off at exit, which aborts.

    No model of several processes may be left by then: were its reducer the last to hold the process group, it would
    wait for the group's thread with Python's lock held, and that thread may be waiting for the lock.
    """
    if distributed.is_initialized():
        gc.collect()  # such a model is part of cycles
        distributed.destroy_process_group()
