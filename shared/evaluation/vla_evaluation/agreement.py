"""Do policy, benchmark and protocol fit together? Asked once, before the first episode."""

from __future__ import annotations

from collections.abc import Mapping

from vla_contract import PolicyInfo
from vla_contract.protocol.errors import did_you_mean
from vla_contract.protocol.parts import Part
from vla_evaluation.actions import differing, unlike
from vla_evaluation.benchmark import Benchmark, base_of
from vla_evaluation.profiles import Profile


def check_policy(
    info: PolicyInfo, benchmark: Benchmark, suite: str, profile: Profile, allow_other_suite: bool = False
) -> None:
    """Raises ValueError where `info` asks for what the benchmark does not have, answers what it cannot execute, was
    made for something else, or is no policy of `profile`: other pictures, cameras, state or convention.
    """
    for camera in info.cameras:
        if camera not in benchmark.cameras:
            raise ValueError(
                f"policy {info.name!r} asks for camera {camera!r}, which {benchmark.name} does not have"
                f"{did_you_mean(camera, benchmark.cameras)}"
            )
    _check_parts(info, benchmark)
    base = base_of(benchmark, suite)
    if info.suites and not {suite, base} & set(info.suites) and not allow_other_suite:
        made_for = ", ".join(info.suites)
        raise ValueError(
            f"policy {info.name!r}{_checkpoint(info)} was made for {made_for}, not for {suite}: serve the checkpoint "
            f"for {base}, evaluate {info.suites[0]}, or add --allow-other-suite if that is what you want"
        )
    if wrong := _misfit(info, profile):
        raise ValueError(f"policy {info.name!r} {wrong}: {_way_out(info, benchmark.profiles)}")


def choose_profile(info: PolicyInfo, benchmark: Benchmark, asked: str | None) -> str:
    """Returns the name of the profile to evaluate under: the one asked for, else the policy's own, else the first."""
    name = asked or info.profile or next(iter(benchmark.profiles))
    if asked is None and name not in benchmark.profiles:
        raise ValueError(
            f"policy {info.name!r}{_checkpoint(info)} names the profile {name!r}, which {benchmark.name} does not "
            f"have; choose with --profile: {', '.join(benchmark.profiles)}"
        )
    return name


def _check_parts(info: PolicyInfo, benchmark: Benchmark) -> None:
    if pair := differing(info.action, benchmark.action):
        raise ValueError(
            f"policy {info.name!r}{_checkpoint(info)} answers actions with {_words(pair[0])} where {benchmark.name} "
            f"executes {_words(pair[1])}; it takes {', '.join(map(str, benchmark.action))}: serve a checkpoint "
            f"made for {benchmark.name}"
        )
    if info.state and (pair := differing(info.state, benchmark.state)):
        raise ValueError(
            f"policy {info.name!r}{_checkpoint(info)} needs a state with {_words(pair[0])} where {benchmark.name} has "
            f"{_words(pair[1])}: serve a checkpoint made for {benchmark.name}"
        )


def _words(part: Part | None) -> str:
    return str(part) if part else "nothing"


def _misfit(info: PolicyInfo, profile: Profile) -> str:
    """Returns what of a policy is not as its profile has it; empty where all is, or the policy looks at nothing."""
    if not info.cameras:
        return ""
    if info.image_hw is not None and tuple(info.image_hw) != (profile.image_size,) * 2:
        return f"takes pictures of {info.image_hw[1]}×{info.image_hw[0]}, profile {profile.name} sends {profile.sends}"
    if profile.cameras and set(info.cameras) != set(profile.cameras):
        theirs, ours = " and ".join(info.cameras), " and ".join(profile.cameras)
        return f"looks through {theirs}, a policy of profile {profile.name} through {ours}"
    if profile.state and not info.state:
        return f"is not told the robot's state, a policy of profile {profile.name} is"
    pair = unlike(info.action, profile.action) if profile.action else None
    return f"answers {_words(pair[0])}, a policy of profile {profile.name} {_words(pair[1])}" if pair else ""


def _way_out(info: PolicyInfo, profiles: Mapping[str, Profile]) -> str:
    fitting = [name for name, one in profiles.items() if not _misfit(info, one)]
    if fitting:
        return f"give --profile {fitting[0]}, which fits it"
    return f"serve it so that it fits, since no profile does: {', '.join(profiles)}"


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
