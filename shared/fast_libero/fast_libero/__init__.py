"""LIBERO with its own interface, states and images, several times faster. docs/fast-libero.md says how to use it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fast_libero.benchmark import get_benchmark, get_benchmark_dict, get_libero_path
    from fast_libero.envs import (
        ControlEnv,
        DummyVectorEnv,
        OffScreenRenderEnv,
        SegmentationRenderEnv,
        SubprocVectorEnv,
    )

_HOME = {
    **dict.fromkeys(("get_benchmark", "get_benchmark_dict", "get_libero_path"), "benchmark"),
    **dict.fromkeys(
        ("ControlEnv", "DummyVectorEnv", "OffScreenRenderEnv", "SegmentationRenderEnv", "SubprocVectorEnv"), "envs"
    ),
}
__all__ = [
    "ControlEnv", "DummyVectorEnv", "OffScreenRenderEnv", "SegmentationRenderEnv", "SubprocVectorEnv",
    "get_benchmark", "get_benchmark_dict", "get_libero_path",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import on first use: `import fast_libero` alone imports neither LIBERO nor MuJoCo."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"fast_libero.{_HOME[name]}"), name)
