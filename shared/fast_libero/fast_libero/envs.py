"""LIBERO's environments, as `libero.libero.envs` has them: the same arguments, methods, states and images, faster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fast_libero import startup

startup.prepare()  # before LIBERO is imported

from libero.libero.envs import TASK_MAPPING, DummyVectorEnv, SubprocVectorEnv, env_wrapper  # noqa: E402

from fast_libero.problem import fast  # noqa: E402

__all__ = [
    "ControlEnv", "DummyVectorEnv", "OffScreenRenderEnv", "SegmentationRenderEnv", "SubprocVectorEnv", "env_wrapper",
]  # fmt: skip


@contextmanager
def _fast_problems(lazy_images: bool) -> Iterator[None]:
    """Let LIBERO's wrappers build fast problems."""
    startup.check_assets()
    own = dict(TASK_MAPPING)
    TASK_MAPPING.update({name: fast(problem, lazy_images) for name, problem in own.items()})
    try:
        yield
    finally:
        TASK_MAPPING.update(own)


class ControlEnv(env_wrapper.ControlEnv):  # type: ignore[misc]
    """LIBERO's wrapper of a task, with its arguments.

    With `lazy_images` an observation's image is rendered when it is read, always before `close`; its pixels are those
    of its step, unless the caller has changed the model's colours, lights or textures since.
    """

    def __init__(self, *args: Any, lazy_images: bool = False, **kwargs: Any):
        with _fast_problems(lazy_images):
            super().__init__(*args, **kwargs)


class OffScreenRenderEnv(env_wrapper.OffScreenRenderEnv):  # type: ignore[misc]
    """LIBERO's environment for evaluation, with its arguments; `lazy_images` as in `ControlEnv`."""

    def __init__(self, *, lazy_images: bool = False, **kwargs: Any):
        with _fast_problems(lazy_images):
            super().__init__(**kwargs)


class SegmentationRenderEnv(env_wrapper.SegmentationRenderEnv):  # type: ignore[misc]
    """LIBERO's environment with segmentation, which robosuite renders."""

    def __init__(self, *, lazy_images: bool = False, **kwargs: Any):
        with _fast_problems(lazy_images):
            super().__init__(**kwargs)
