"""Do policy, suite and protocol fit together? Asked once, before the first episode."""

from __future__ import annotations

from vla_contract import PolicyInfo
from vla_contract.protocol.errors import did_you_mean
from vla_evaluation.config import CAMERAS
from vla_evaluation.profiles import PROFILES
from vla_evaluation.rollout import ACTIONS


def check_policy(info: PolicyInfo, suite: str, image_size: int, allow_other_suite: bool = False) -> None:
    """Raises ValueError where `info` asks for what LIBERO does not have or was made for something else.

    `image_size` is the side of the square pictures that the protocol sends, in pixels.
    """
    for camera in info.cameras:
        if camera not in CAMERAS:
            raise ValueError(
                f"policy {info.name!r} asks for camera {camera!r}, which LIBERO does not have"
                f"{did_you_mean(camera, CAMERAS)}"
            )
    if info.action not in ACTIONS:
        raise ValueError(
            f"policy {info.name!r}{_checkpoint(info)} answers actions of {', '.join(map(str, info.action))}, which "
            f"LIBERO's robot cannot execute; it takes {', '.join(map(str, ACTIONS[0]))}: serve a checkpoint made for "
            "LIBERO"
        )
    if info.suites and suite not in info.suites and not allow_other_suite:
        made_for = ", ".join(info.suites)
        raise ValueError(
            f"policy {info.name!r}{_checkpoint(info)} was made for {made_for}, not for {suite}: serve the checkpoint "
            f"for {suite}, evaluate {info.suites[0]}, or add --allow-other-suite if that is what you want"
        )
    if info.cameras and info.image_hw is not None and tuple(info.image_hw) != (image_size, image_size):
        raise ValueError(
            f"policy {info.name!r} takes pictures of {info.image_hw[1]}×{info.image_hw[0]}, the protocol sends "
            f"{image_size}×{image_size}: serve it so that it takes these, since there is no profile but "
            f"{' and '.join(PROFILES)} yet"
        )


def choose_unnorm_key(info: PolicyInfo, usual: tuple[str, ...], asked: str | None = None) -> str | None:
    """Returns the key of the statistics that fit the suite: the one asked for, else the first of `usual` it has.

    None for a policy without such keys. ValueError, listing the keys, where none fits.
    """
    keys = info.unnorm_keys
    if not keys:
        if asked is not None:
            raise ValueError(f"--unnorm-key {asked!r}: policy {info.name!r} has no such keys; leave the flag out")
        return None
    candidates = (asked,) if asked is not None else usual
    for key in candidates:
        if key in keys:
            return key
    wanted = " or ".join(repr(key) for key in candidates)
    raise ValueError(
        f"policy {info.name!r} has no statistics {wanted} to un-normalise its actions; give one of its own with "
        f"--unnorm-key: {', '.join(keys)}"
    )


def _checkpoint(info: PolicyInfo) -> str:
    return f" ({info.checkpoint.repo})" if info.checkpoint else ""
