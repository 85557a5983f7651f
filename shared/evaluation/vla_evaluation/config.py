"""The evaluator's configuration: every flag, and what of it makes up a run's identity."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from vla_evaluation.chunks import Chunking

LATEST = "latest"
SHOWN_DIGITS = 8  # of a digest or a revision


@dataclass(frozen=True)
class RunConfig:
    """What every job has that rolls a policy out on a suite, over HTTP."""

    suite: tyro.conf.Positional[str]
    """One of the benchmark's suites."""
    policy_url: str = "http://127.0.0.1:8001"
    """Where the policy service listens; several of the same policy share the episodes: URL,URL."""
    token: str | None = None
    """Bearer token of the policy service; rather set $VLALAB_TOKEN. It is never stored."""
    run_dir: Path | None = None
    """Folder of all such runs; default: theirs on the shared volume."""
    workers: int | None = None
    """Simulator processes here; default: one per core, fewer if memory is short, more while a policy leaves cores
    idle; 0, with --listen: others' alone."""
    tasks: str | None = None
    """Which tasks: indices, ranges or names, as in "0,2-4"; default: all."""
    seed: int | None = None
    """Seed of what the simulator draws; default: the profile's (0)."""
    profile: str | None = None
    """Protocol: step limits and image pipeline; default: the one that the policy names, else the benchmark's first."""
    max_steps: int | None = None
    """Step limit of an episode instead of the profile's; such a run is not comparable with published figures."""
    execute: int | None = None
    """Steps from one question to the policy to the next; default: the profile's, else as many as a chunk has."""
    unnorm_key: str | None = None
    """Statistics with which the policy un-normalises its actions; default: the suite's."""
    render: Literal["auto", "cpu", "gpu"] = "auto"
    """Where pictures are drawn."""
    assets: str | None = None
    """Asset folder, or a word that the benchmark knows; default: the first source there is."""
    retries: int = 2
    """Further tries for an episode that an infrastructure error has ended."""
    policy_timeout_s: float = 600.0
    """How long to wait for the policy to get ready, at the start and when it goes away."""
    act_timeout_s: float = 120.0
    """How long one answer of the policy may take."""
    lease_s: float = 30.0
    """Silence in an episode after which a worker is taken for stuck and its episode given to another."""
    start_timeout_s: float = 300.0
    """How long a worker may take to start; raise it where many start at once on a slow machine."""
    scene_timeout_s: float = 300.0
    """How long a worker may take to build a task's scene and draw its first picture."""
    allow_other_suite: bool = False
    """Take a checkpoint for a suite it was not made for."""
    allow_drift: bool = False
    """Go on with a run although something it depends on has changed; the change is recorded."""

    def __post_init__(self):
        least = {
            "workers": 0,
            "max_steps": 1,
            "execute": 1,
            "retries": 0,
            "lease_s": 1,
            "start_timeout_s": 1,
            "scene_timeout_s": 1,
            "act_timeout_s": 0.1,
        }
        self.require(least)
        if self.workers == 0 and not getattr(self, "listen", None):
            raise ValueError("--workers 0 leaves all to machines that join, which takes --listen; expected 1 or more")
        read_addresses("--policy-url", self.policy_url)

    @property
    def policies(self) -> tuple[str, ...]:
        """The addresses of the policy."""
        return read_addresses("--policy-url", self.policy_url)

    @property
    def chunking(self) -> Chunking:
        """How chunks are to be executed, as far as flags say it. Raises ValueError for what makes no sense."""
        return Chunking(self.execute)

    def require(self, least: Mapping[str, float]) -> None:
        """Raises ValueError for a field that is below its bound."""
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ValueError(f"--{name.replace('_', '-')} {value} makes no sense; expected {bound} or more")


@dataclass(frozen=True)
class EvalConfig(RunConfig):
    """Evaluate a policy on a suite, over HTTP."""

    run_id: str | None = None
    """Name of the run; an existing one is resumed if its configuration is the same."""
    resume: str | None = None
    """Run to go on with; without a name: the latest one with this configuration."""
    trials: int | None = None
    """Episodes per task, from its first init state on; default: the profile's (50; groot-n1.5: 5)."""
    episodes: str | None = None
    """Which init states, as in "0-9,12", instead of --trials."""
    cameras: str = ""
    """Cameras to send beside those the policy asks for, with commas between them."""
    video: Literal["sample", "all", "failures", "none"] = "sample"
    """Which episodes get a video; sample: each task's first success and first three failures."""
    policy_errors: Literal["stop", "fail"] = "stop"
    """What an answer that cannot be executed does: stop the run, or end its episode as not successful."""
    ensemble: Literal["newest", "mean", "exponential"] | None = None
    """What to execute of chunks that overlap; the policy is then asked every step, or as often as --execute says."""
    ensemble_weight: float | None = None
    """m of --ensemble exponential, w_i = exp(-m·i) with the oldest chunk first; default: ACT's 0.01."""
    realtime: float | None = None
    """Steps per second of a world that moves on while the policy thinks; default: it waits."""
    listen: str | None = None
    """Where other machines may join, as in "0.0.0.0:8100"; beyond this machine with a token only."""

    def __post_init__(self):
        super().__post_init__()
        self.require({"trials": 1})
        _ = self.chunking  # refuses what makes no sense together
        if self.trials is not None and self.episodes is not None:
            raise ValueError("--trials and --episodes both choose episodes; give one of them")
        if self.run_id is not None and self.resume is not None:
            raise ValueError("--run-id and --resume both name a run; give one of them")
        if self.run_id == LATEST:
            raise ValueError(f"--run-id {LATEST} means the latest run and cannot name one; choose another id")
        for name in (self.run_id, self.resume):
            if name is not None:
                require_folder_name("run id", name)

    @property
    def chunking(self) -> Chunking:
        """As RunConfig's, with ensembles and real time."""
        return Chunking(self.execute, self.ensemble, self.ensemble_weight, self.realtime)

    @property
    def extra_cameras(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.cameras.split(",") if name.strip())

    def episode_list(self, default_trials: int, available: int) -> list[int]:
        """Returns the chosen episodes; ValueError where a task has fewer init states (`available`)."""
        text = self.episodes or f"0-{(self.trials or default_trials) - 1}"
        chosen = parse_ranges(text)
        if chosen[-1] >= available:
            flag = "--episodes" if self.episodes else "--trials"
            raise ValueError(f"{flag} asks for episode {chosen[-1]}, but a task has init states 0-{available - 1}")
        return chosen


def read_addresses(flag: str, text: str) -> tuple[str, ...]:
    """Returns the addresses of a text like "http://a:1,http://b:1". ValueError for one that is named twice, or none."""
    found = [one.strip().rstrip("/") for one in text.split(",")]
    if not all(found):
        raise ValueError(f"{flag} {text!r} has an address that is empty; expected URL or URL,URL")
    if twice := sorted({one for one in found if found.count(one) > 1}):
        raise ValueError(f"{flag} names {twice[0]} twice; expected another address for each of the same policy")
    return tuple(found)


def require_folder_name(what: str, name: str) -> None:
    """Raises ValueError for a name that cannot be a folder's."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(f"{what} {name!r} is not a folder name; use letters, digits, '.', '_' and '-'")


def parse_ranges(text: str) -> list[int]:
    """Returns the sorted numbers of a text like "0,2-4"."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"{part!r} in {text!r} is no number or range; expected something like '0,2-4'")
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(numbers)


def show_ranges(numbers: list[int]) -> str:
    """Returns the shortest text that `parse_ranges` reads as these numbers."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def parse_args(arguments: list[str], suites: Sequence[str]) -> EvalConfig:
    """Returns the configuration from command-line arguments; ValueError for values that make no sense."""
    return tyro.cli(EvalConfig, args=_name_bare_resume(arguments, suites), prog="evaluate")


def _name_bare_resume(arguments: list[str], suites: Sequence[str]) -> list[str]:
    """Lets `--resume` stand alone, meaning the latest run with the same configuration."""
    named: list[str] = []
    for position, argument in enumerate(arguments):
        named.append(argument)
        following = arguments[position + 1] if position + 1 < len(arguments) else "--"
        if argument == "--resume" and (following.startswith("-") or following in suites):
            named.append(LATEST)
    return named


def token_of(config: RunConfig) -> str | None:
    return config.token or os.environ.get("VLALAB_TOKEN") or None


# --- identity -----------------------------------------------------------------------------------------------


def config_hash(identity: Mapping) -> str:
    """Returns 16 hex digits that change with anything in the identity."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def flatten(tree: Mapping, prefix: str = "") -> dict[str, object]:
    """Returns a nested mapping as one level with dotted names."""
    flat: dict[str, object] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def differences(old: Mapping, new: Mapping) -> list[str]:
    """Returns one line "name: old → new" per fact in which two identities differ."""
    before, after = flatten(old), flatten(new)
    lines = []
    for key in sorted({*before, *after}):
        if key not in before or key not in after or before[key] != after[key]:
            lines.append(f"{key}: {fact(before, key)} → {fact(after, key)}")
    return lines


def fact(flat: Mapping, key: str) -> str:
    """Returns what a flat identity says under a key, for people."""
    if key not in flat:
        return "not recorded"
    return "the whole chunk" if key == "execute" and flat[key] is None else in_words(flat[key])


def in_words(value: object) -> str:
    """Returns a JSON value for people: no null, no quotes, and of a digest its beginning."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[:SHOWN_DIGITS] if re.fullmatch("[0-9a-f]{16,}", text) else text
