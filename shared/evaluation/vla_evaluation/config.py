"""The options of evaluation and recording, and the identity of a run."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from vla_common.options import Options, option

if TYPE_CHECKING:
    from vla_evaluation.chunks import Chunking

LATEST = "latest"
DIGEST_CHARS = 8  # of a digest or a revision


@dataclass(frozen=True)
class RunConfig(Options):
    """The options of every job that rolls a policy out on a suite, over HTTP."""

    suite: str = option(help="one of the benchmark's suites", group="internal")
    policy_url: str = option(
        "http://127.0.0.1:8001",
        "where the policy service listens; several of the same policy share the episodes: URL,URL",
        group="internal",
    )
    token: str | None = option(
        None, "bearer token of the policy service; prefer $VLALAB_TOKEN. It is never stored", group="internal"
    )
    run_dir: Path | None = option(
        None, "directory of all runs", default_help="the one on the shared volume", group="internal"
    )
    tasks: str | None = option(
        None, "which tasks: numbers, ranges, names or instructions", default_help="all", kind="tasks"
    )
    workers: int | None = option(
        None, "simulator processes; 0 with --listen: only joining machines work", "[0, inf)",
        default_help="one per core, more if the policy is slow",
    )  # fmt: skip
    profile: str | None = option(
        None, "protocol", default_help="the policy's own, else the benchmark's first", kind="profile"
    )
    seed: int | None = option(
        None, "seed of the fixture poses", "[0, 4294967295]", default_help="the profile's", group="advanced"
    )
    unnorm_key: str | None = option(
        None, "statistics the policy un-normalises with", default_help="the suite's", group="advanced"
    )
    execute: int | None = option(
        None, "steps between two policy queries", "[1, inf)",
        default_help="the profile's, else the whole chunk", group="advanced",
    )  # fmt: skip
    max_steps: int | None = option(
        None, "step limit of an episode instead of the profile's", "[1, inf)", group="advanced"
    )
    render: Literal["auto", "cpu", "gpu"] = option("auto", "cpu, gpu or auto", group="advanced")
    assets: str | None = option(
        None, "asset directory, official or kit", default_help="the best available", kind="path",
        keywords=("official", "kit"), group="advanced",
    )  # fmt: skip
    retries: int = option(2, "retries of an episode that an infrastructure error ended", "[0, inf)", group="advanced")
    policy_timeout_s: float = option(
        600.0, "how long to wait until the policy is ready, at the start and after it becomes unreachable",
        "[0, inf)", metavar="SECONDS", group="advanced",
    )  # fmt: skip
    act_timeout_s: float = option(
        120.0, "timeout of one policy query", "[0.1, inf)", metavar="SECONDS", group="advanced"
    )
    lease_s: float = option(
        30.0, "seconds without a heartbeat until a worker counts as stuck and its episode goes to another",
        "[1, inf)", group="internal",
    )  # fmt: skip
    start_timeout_s: float = option(
        300.0, "timeout for the start of a simulator process", "[1, inf)", metavar="SECONDS", group="advanced"
    )
    scene_timeout_s: float = option(
        300.0, "timeout for building a task's scene", "[1, inf)", metavar="SECONDS", group="advanced"
    )
    instructions: Literal["suite", "base"] = option(
        "suite", "the sentences for the policy: the suite's own, or those of the suite that it disturbs",
        group="advanced",
    )  # fmt: skip
    allow_other_suite: bool = option(False, "evaluate a checkpoint on a suite it was not trained for", group="advanced")
    allow_drift: bool = option(False, "resume a run although something it depends on has changed", group="advanced")

    def __post_init__(self) -> None:
        self.check_options()
        if self.workers == 0 and not getattr(self, "listen", None):
            raise ValueError("--workers 0 requires --listen, since only joining machines work then; expected 1 or more")
        read_addresses("--policy-url", self.policy_url)

    @property
    def policies(self) -> tuple[str, ...]:
        """The addresses of the policy."""
        return read_addresses("--policy-url", self.policy_url)

    @property
    def chunking(self) -> Chunking:
        """The flags' chunk settings. Raises ValueError for invalid combinations."""
        from vla_evaluation.chunks import Chunking  # with numpy, which `./lab` does not have

        return Chunking(self.execute)


@dataclass(frozen=True)
class EvalConfig(RunConfig):
    """Evaluate a policy on a suite, over HTTP."""

    trials: int | None = option(None, "episodes per task", "[1, inf)", default_help="the profile's", kind="trials")
    episodes: str | None = option(None, "which init states, instead of --trials", kind="episodes")
    video: Literal["sample", "all", "failures", "none"] = option("sample", "all, failures, sample or none")
    resume: str | None = option(
        None, "resume a run; without a name: the latest one with these settings", kind="run", optional_value=True
    )
    run_id: str | None = option(None, "name of the run", default_help="SUITE-POLICY-N", kind="run id")
    ensemble: Literal["newest", "mean", "exponential"] | None = option(
        None,
        "combine overlapping chunks: newest, mean or exponential; queries every step, or as --execute sets",
        default_help="a chunk ends where the next begins", group="advanced",
    )  # fmt: skip
    ensemble_weight: float | None = option(
        None, "m of --ensemble exponential: w_i = exp(-m·i), the oldest first", default_help="ACT's 0.01",
        metavar="M", group="advanced",
    )  # fmt: skip
    realtime: float | None = option(
        None, "steps per second of a simulation that continues during inference", "(0, inf)",
        default_help="it waits", metavar="RATE", group="advanced",
    )  # fmt: skip
    cameras: str = option(
        "", "cameras to send in addition to those that the policy requests", default_help="none",
        kind="cameras", group="advanced",
    )  # fmt: skip
    instructions_file: Path | None = option(
        None, "your own sentences, as JSON: {TASK: [SENTENCE, …]}; several are used in turn by episode",
        kind="path", metavar="FILE", group="advanced",
    )  # fmt: skip
    ablate: str = option(
        "", "repeat the episodes without these inputs: images (black, and another episode's), language (another "
        "task's)", kind="several", keywords=("images", "language"), default_help="none",
    )  # fmt: skip
    ablate_trials: int | None = option(
        None, "episodes per task of --ablate, the first ones", "[1, inf)", default_help="all", group="advanced"
    )
    policy_errors: Literal["stop", "fail"] = option(
        "stop", "on an invalid action: stop the run, or fail the episode", group="advanced"
    )
    listen: str | None = option(
        None, "let other machines join this run at that address", kind="address", group="advanced"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.chunking  # raises for invalid combinations
        if self.trials is not None and self.episodes is not None:
            raise ValueError("--trials and --episodes both choose episodes; use one of them")
        if self.instructions_file is not None and self.instructions != "suite":
            raise ValueError("--instructions and --instructions-file both choose sentences; use one of them")
        if wrong := [name for name in self.ablated_inputs if name not in ("images", "language")]:
            raise ValueError(f"--ablate must name images, language or both, got {wrong[0]!r}")
        if self.ablate and self.listen:
            raise ValueError("--ablate reads the run's files and cannot be combined with --listen")
        if self.run_id is not None and self.resume is not None:
            raise ValueError("--run-id and --resume both name a run; use one of them")
        if self.run_id == LATEST:
            raise ValueError(f"--run-id {LATEST} means the latest run and cannot name one; choose another id")
        for name in (self.run_id, self.resume):
            if name is not None:
                require_directory_name("run id", name)

    @property
    def chunking(self) -> Chunking:
        """As RunConfig's, with ensembles and real time."""
        from vla_evaluation.chunks import Chunking  # with numpy, which `./lab` does not have

        return Chunking(self.execute, self.ensemble, self.ensemble_weight, self.realtime)

    @property
    def ablated_inputs(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.ablate.split(",") if name.strip())

    @property
    def extra_cameras(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.cameras.split(",") if name.strip())


@dataclass(frozen=True)
class RecordConfig(RunConfig):
    """Record demonstrations of a policy on a suite, from starts that evaluation never uses."""

    episodes: int = option(100, "demonstrations to keep, over all tasks", "[1, inf)")
    name: str | None = option(
        None, "name of the recording; an existing one is continued", default_help="SUITE-POLICY",
        kind="recording",
    )  # fmt: skip
    noise: float = option(
        0.0, "now and then push the arm, by this share of its range; the policy's own actions are stored",
        "[0, 1]", metavar="SHARE",
    )  # fmt: skip
    starts: Literal["suite", "wide"] = option(
        "suite", "where episodes start: as the suite places everything, or wide: anywhere in reach"
    )
    vary: str = option(
        "", "what is random in every demonstration besides the start", kind="several", keywords=("light", "camera"),
        default_help="nothing",
    )  # fmt: skip
    drop_noops: bool = option(False, "drop steps that do nothing")
    keep_failures: bool = option(False, "also keep failed attempts")
    attempts: int = option(5, "maximum attempts per demonstration of a task", "[1, inf)")
    seed: int | None = option(None, "seed of the sampled start states", default_help="0", group="common")
    workers: int | None = option(None, "simulator processes", "[1, inf)")

    video: ClassVar[str] = "none"  # videos of a recording come from its data set
    policy_errors: ClassVar[str] = "fail"  # an invalid action makes the attempt a failed one
    extra_cameras: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise and (self.execute or 1) > 1:
            raise ValueError(f"--noise queries the policy after every step; remove --execute {self.execute}")
        if self.name is not None:
            require_directory_name("name", self.name)


def read_addresses(flag: str, text: str) -> tuple[str, ...]:
    """Return the addresses of a text like "http://a:1,http://b:1". ValueError for an empty or repeated one."""
    addresses = [part.strip().rstrip("/") for part in text.split(",")]
    if not all(addresses):
        raise ValueError(f"{flag} {text!r} has an empty address; expected URL or URL,URL")
    if twice := sorted({address for address in addresses if addresses.count(address) > 1}):
        raise ValueError(f"{flag} names {twice[0]} twice; expected different addresses")
    return tuple(addresses)


def require_directory_name(label: str, name: str) -> None:
    """Raise ValueError for an invalid directory name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(f"{label} {name!r} is not a valid name; use letters, digits, '.', '_' and '-'")


def parse_ranges(text: str) -> list[int]:
    """Return the sorted numbers of a text like "0,2-4"."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"{part!r} in {text!r} is not a number or range; expected for example '0,2-4'")
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(numbers)


def show_ranges(numbers: list[int]) -> str:
    """Return the shortest text that `parse_ranges` reads as these numbers."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def parse_args(arguments: list[str], suites: Sequence[str]) -> EvalConfig:
    """Return the configuration from command-line arguments; `--resume` alone means the latest run like this.

    Raises ValueError for invalid values.
    """
    named: list[str] = []
    for argument, following in zip(arguments, [*arguments[1:], "--"], strict=True):
        named.append(argument)
        if argument == "--resume" and (following.startswith("-") or following in suites):
            named.append(LATEST)
    import tyro  # here, for `./lab` imports this module and does not have it

    return tyro.cli(EvalConfig, args=named, prog="evaluate", config=(tyro.conf.PositionalRequiredArgs,))


def parse_record_args(arguments: list[str]) -> RecordConfig:
    """Return the configuration from command-line arguments. Raises ValueError for invalid values."""
    import tyro

    return tyro.cli(RecordConfig, args=arguments, prog="record", config=(tyro.conf.PositionalRequiredArgs,))


def token_of(config: RunConfig) -> str | None:
    return config.token or os.environ.get("VLALAB_TOKEN") or None


# --- identity -----------------------------------------------------------------------------------------------


def config_hash(identity: Mapping) -> str:
    """Return 16 hex digits that change with any fact of the identity."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def flatten(tree: Mapping, prefix: str = "") -> dict[str, object]:
    """Return a nested mapping as one level with dotted names."""
    flat: dict[str, object] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def differences(old: Mapping, new: Mapping) -> list[str]:
    """Return one line "name: old → new" per fact in which two identities differ."""
    before, after = flatten(old), flatten(new)
    missing = object()
    changed = [key for key in sorted({*before, *after}) if before.get(key, missing) != after.get(key, missing)]
    return [f"{key}: {fact(before, key)} → {fact(after, key)}" for key in changed]


def fact(flat: Mapping, key: str) -> str:
    """Return a value of a flat identity as text."""
    if key not in flat:
        return "not recorded"
    return "the whole chunk" if key == "execute" and flat[key] is None else in_words(flat[key])


def in_words(value: object) -> str:
    """Return a JSON value as readable text: no null, no quotes, digests cut short."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[:DIGEST_CHARS] if re.fullmatch("[0-9a-f]{16,}", text) else text
