"""Evaluation protocols as data: every constant that two runs must share to be comparable.

A benchmark defines its own. A report shows published figures only under the profile that they were measured with.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from vla_contract.protocol.errors import did_you_mean
from vla_contract.protocol.parts import Part

LATER = ("upright", "robot", "seed_each", "extra_resets")  # stored only when set: older runs keep their identity


@dataclass(frozen=True)
class Reproduction:
    """How `./lab reproduce POLICY SUITE` repeats a published row; `policy` is its name there.

    `service` serves the policy; empty: a server of another project, whose address the user gives. `checkpoint` are the
    flags of `./lab checkpoint SERVICE`. They fill `directory`; empty: the service's own directory of the suite.
    "{suite}" stands for the suite, "{dashed}" for the suite with dashes. `settings` are the service's, `flags` the
    evaluation's. `differs` is a difference from the published protocol that no flag removes.
    """

    policy: str
    service: str = ""
    checkpoint: str = ""
    directory: str = ""
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    flags: tuple[str, ...] = ()
    differs: str = ""


@dataclass(frozen=True)
class PublishedResult:
    """One published row: success in percent per suite, over `trials` episodes of each task.

    `comparable` only where protocol and profile agree. trials is 0 in rows that are not reproduced.
    """

    model: str
    source: str
    episodes: str
    success_percent: Mapping[str, float]
    comparable: bool = False
    trials: int = 0
    reproduction: Reproduction | None = None

    def as_json(self, suite: str) -> dict[str, object]:
        """Return the row of one suite as JSON types."""
        differs = self.reproduction.differs if self.reproduction else ""
        values: dict[str, object] = {name: value for name, value in vars(self).items() if name != "reproduction"}
        return {**values, "success_percent": self.success_percent[suite], "differs": differs}


@dataclass(frozen=True, kw_only=True)
class EpisodeProtocol:
    """An episode's settings besides the policy's actions, and the preparation of its images.

    `wait_steps` steps of `wait_action`, in the benchmark's action, in which objects fall to rest. Images are rendered
    at `camera_size`², turned by 180° or (`upright`) flipped vertically, put through JPEG at `jpeg_quality` (4:2:0;
    None: not), resized to `image_size`² by `resize` (a name in pictures/images.py), the middle `crop_area` cropped and
    resized back (None: not). Both sizes are 0 where images are sent as the benchmark renders them.

    `robot` is one of the benchmark's robot models, empty: its own. The environment is seeded once per task; with
    `seed_each` before every episode, with the seed and the episode's number, after `extra_resets` unseeded ones that
    begin a task.
    """

    wait_steps: int = 0
    wait_action: tuple[float, ...] = ()
    camera_size: int = 256
    rotate_180: bool = False
    upright: bool = False
    jpeg_quality: int | None = None
    image_size: int = 256
    resize: str = "lanczos3"
    crop_area: float | None = None
    robot: str = ""
    seed_each: bool = False
    extra_resets: int = 0

    def scene(self, sampled_start: bool = False) -> dict[str, object]:
        """Return the settings of `Environment.load_task`: none for the benchmark's own robot, seeded once.

        sampled_start: the episode's start is sampled with a seed of its own.
        """
        robot = {"robot": self.robot} if self.robot else {}
        each = self.seed_each and not sampled_start
        return {**robot, "seed_each": True, "extra_resets": self.extra_resets} if each else robot

    @property
    def sends(self) -> str:
        """The size of the images that the policy receives, "224×224"."""
        return f"{self.image_size}×{self.image_size}" if self.image_size else "its own size"


@dataclass(frozen=True, kw_only=True)
class Profile(EpisodeProtocol):
    """One protocol: an episode's, `max_steps` policy steps per suite, and `trials` episodes per task from the first
    init states on. The environment is seeded with `env_seed`. `execute` actions of a chunk are executed before the
    next request, None: all. A policy that takes images takes those of `cameras`, with `state` and `action` in that
    convention; empty: whatever the benchmark has.

    `unnorm_keys` are the statistics to request of a policy, in order of preference. Published figures hold for
    `simulator`, package versions, and for `details`, of a policy that reports such details.
    """

    name: str
    source: str
    max_steps: Mapping[str, int]
    trials: int
    execute: int | None = None
    env_seed: int = 0
    cameras: tuple[str, ...] = ()
    state: tuple[Part, ...] = ()
    action: tuple[Part, ...] = ()
    unnorm_keys: tuple[str, ...] = ("{suite}",)
    simulator: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    details: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    published: tuple[PublishedResult, ...] = ()

    def protocol(self) -> EpisodeProtocol:
        """Return the episode's part, which is in a run's identity."""
        return EpisodeProtocol(**{setting.name: getattr(self, setting.name) for setting in fields(EpisodeProtocol)})

    def unnorm_keys_for(self, suite: str) -> tuple[str, ...]:
        """Return the keys of a checkpoint's statistics for `suite`, the best first."""
        return tuple(key.format(suite=suite) for key in self.unnorm_keys)

    def steps_for(self, suite: str) -> int:
        """Return the step limit of an episode of `suite`. Raises ValueError for a suite without one."""
        if suite not in self.max_steps:
            raise ValueError(
                f"profile {self.name!r} has no step limit for suite {suite!r}; known: {', '.join(self.max_steps)}"
            )
        return self.max_steps[suite]

    def published_for(self, suite: str) -> tuple[PublishedResult, ...]:
        """Return the published rows that name `suite`."""
        return tuple(row for row in self.published if suite in row.success_percent)

    def as_json(self, suite: str, base: str | None = None) -> dict[str, object]:
        """Return the protocol's reference values for a suite as JSON types, with the suite's published figures.

        Step limit and statistics are those of `base`, the suite that it is derived from.
        """
        base = base or suite
        rows = [row.as_json(suite) for row in self.published_for(suite)]
        return {
            "max_steps": self.steps_for(base),
            "trials": self.trials,
            "execute": self.execute,
            "env_seed": self.env_seed,
            "unnorm_keys": list(self.unnorm_keys_for(base)),
            "simulator": dict(self.simulator),
            "details": dict(self.details),
            "published": rows,
        }


def choose(profiles: Mapping[str, Profile], name: str) -> Profile:
    """Return the profile called `name`. Raises ValueError, with the nearest name, when there is none."""
    if name not in profiles:
        raise ValueError(f"profile {name!r} not found{did_you_mean(name, profiles)}")
    return profiles[name]
