"""Check that policy, benchmark and protocol fit together, once, before the first episode."""

from __future__ import annotations

from vla_contract import PolicyInfo
from vla_contract.protocol.errors import did_you_mean
from vla_evaluation.actions import differing
from vla_evaluation.benchmark import Benchmark, base_of
from vla_evaluation.profiles import Profile


def check_policy(
    info: PolicyInfo, benchmark: Benchmark, suite: str, profile: Profile, allow_other_suite: bool = False
) -> None:
    """Raise ValueError if policy and benchmark do not fit.

    The policy needs a camera or state that the benchmark does not have, returns actions that it cannot execute, was
    made for another suite, or expects other images, cameras, state or action convention than `profile`.
    """
    name, served = f"policy {info.name!r}", _name(info)
    for camera in info.cameras:
        if camera not in benchmark.cameras:
            raise ValueError(
                f"{name} needs camera {camera!r}, which {benchmark.name} does not have"
                f"{did_you_mean(camera, benchmark.cameras)}"
            )
    if pair := differing(info.action, benchmark.action):
        raise ValueError(
            f"{served} returns actions with {pair[0] or 'nothing'} where {benchmark.name} "
            f"expects {pair[1] or 'nothing'}. Serve a checkpoint made for {benchmark.name}, whose actions are "
            f"{', '.join(map(str, benchmark.action))}"
        )
    if info.state and (pair := differing(info.state, benchmark.state)):
        raise ValueError(
            f"{served} needs a state with {pair[0] or 'nothing'} where {benchmark.name} has "
            f"{pair[1] or 'nothing'}. Serve a checkpoint made for {benchmark.name}"
        )
    base = base_of(benchmark, suite)
    if info.suites and not {suite, base} & set(info.suites) and not allow_other_suite:
        raise ValueError(
            f"{served} was made for {', '.join(info.suites)}, not for {suite}. Serve the checkpoint "
            f"for {base}, evaluate {info.suites[0]}, or add --allow-other-suite to evaluate it anyway"
        )
    if misfit := _misfit(info, profile):
        fitting = [other for other, profile in benchmark.profiles.items() if not _misfit(info, profile)]
        hint = f"none of the profiles fits it: {', '.join(benchmark.profiles)}"
        raise ValueError(f"{name} {misfit}; {f'use --profile {fitting[0]}, which fits it' if fitting else hint}")


def choose_profile(info: PolicyInfo, benchmark: Benchmark, requested: str | None) -> str:
    """Return the name of the profile to evaluate under: the requested one, else the policy's own, else the first."""
    name = requested or info.profile or next(iter(benchmark.profiles))
    if requested is None and name not in benchmark.profiles:
        raise ValueError(
            f"{_name(info)} requests profile {name!r}, which {benchmark.name} does not "
            f"have; choose one with --profile: {', '.join(benchmark.profiles)}"
        )
    return name


def _misfit(info: PolicyInfo, profile: Profile) -> str:
    """Return how a policy differs from its profile; empty if it does not, or if the policy needs no image."""
    if not info.cameras:
        return ""
    if info.image_hw is not None and profile.image_size and tuple(info.image_hw) != (profile.image_size,) * 2:
        return (
            f"expects images of {info.image_hw[1]}×{info.image_hw[0]}, but profile {profile.name} sends {profile.sends}"
        )
    if profile.cameras and set(info.cameras) != set(profile.cameras):
        policy_cameras, profile_cameras = " and ".join(info.cameras), " and ".join(profile.cameras)
        return f"uses the cameras {policy_cameras}, but profile {profile.name} sends {profile_cameras}"
    if profile.state and not info.state:
        return f"takes no robot state, but profile {profile.name} sends it"
    if profile.action and (pair := differing(info.action, profile.action, convert=False)):
        return f"returns {pair[0] or 'nothing'}, but profile {profile.name} expects {pair[1] or 'nothing'}"
    return ""


def choose_unnorm_key(info: PolicyInfo, usual: tuple[str, ...], requested: str | None = None) -> str | None:
    """Return the key of the statistics that fit the suite: the requested one, else the first of `usual` it has.

    None for a policy without such keys. ValueError, listing the keys, if none fits.
    """
    if not info.unnorm_keys:
        if requested is not None:
            raise ValueError(f"--unnorm-key {requested!r}: policy {info.name!r} has no such keys; remove the flag")
        return None
    candidates = (requested,) if requested is not None else usual
    for key in candidates:
        if key in info.unnorm_keys:
            return key
    raise ValueError(
        f"policy {info.name!r} has no statistics {' or '.join(map(repr, candidates))} to un-normalise its actions; "
        f"choose one with --unnorm-key: {', '.join(info.unnorm_keys)}"
    )


def _name(info: PolicyInfo) -> str:
    return f"policy {info.name!r}" + (f" ({info.checkpoint.repo})" if info.checkpoint else "")
