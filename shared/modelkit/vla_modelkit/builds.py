"""Check that this build of torch supports a GPU, before anything is loaded. Does not import torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any


def runs_on(architectures: Iterable[str], capability: tuple[int, int]) -> bool:
    """Return whether code for these architectures runs on a GPU of that compute capability, as CUDA's guide says.

    architectures: as torch.cuda.get_arch_list() has them. `sm_86` is machine code for 8.6 and later
    minor versions; `compute_90` is PTX, which the driver compiles for 9.0 and later; a suffix (`sm_90a`) restricts
    it to that version (`f`: to its family).
    """
    return any(_fits(*match.groups(), capability) for name in architectures if (match := _NAME.fullmatch(name)))


_NAME = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def _fits(kind: str, major: str, minor: str, bound: str, capability: tuple[int, int]) -> bool:
    made_for = (int(major), int(minor))
    if bound == "a":
        return capability == made_for
    if kind == "compute" and not bound:
        return capability >= made_for
    return capability[0] == made_for[0] and capability >= made_for


def require_built_for(torch: Any, device: Any) -> None:
    """Raise ValueError if `device` is a GPU that this torch was not built for; the CPU is always supported.

    torch: the module. device: "cuda", "cuda:1" or a torch.device. Without this, the first kernel fails minutes later.
    """
    if not str(device).startswith("cuda"):
        return
    capability, architectures = torch.cuda.get_device_capability(device), torch.cuda.get_arch_list()
    if architectures and not runs_on(architectures, capability):
        raise ValueError(
            f"torch {torch.__version__} has no code for this {torch.cuda.get_device_name(device)} (compute capability "
            f"{'.'.join(map(str, capability))}; it has {', '.join(architectures)}): use another GPU or the CPU "
            "(--gpu none), or a newer torch (openvla, gr00t: --variant cu130)"
        )
