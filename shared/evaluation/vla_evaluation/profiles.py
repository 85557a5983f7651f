"""Evaluation protocols of LIBERO as data: every constant that two runs must share to be comparable.

Profile `openvla` is experiments/robot/libero/run_libero_eval.py of openvla at c8f03f48, with the picture's path through
libero_utils.py and openvla_utils.py. Figures stand beside a run only under the profile that they were measured with.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from services.libero.simulator.suites import SUITES
from vla_contract.protocol.errors import did_you_mean

# MuJoCo 3.2.3 with robosuite 1.4.0 gave OpenVLA's average (76.2 % against 76.5 % published); 3.3.3 and later draw
# LIBERO's floors darker, which costs it 20 points on libero_object.
SIMULATOR = MappingProxyType({"mujoco": "3.2.3", "robosuite": "1.4.0", "hf-libero": "0.1.4", "bddl": "1.0.1"})


@dataclass(frozen=True)
class Published:
    """One published row: success in percent per suite. `comparable` only where protocol and profile agree."""

    model: str
    source: str
    episodes: str
    success_percent: Mapping[str, float]
    comparable: bool = False


@dataclass(frozen=True)
class Profile:
    """One protocol.

    Episodes: `max_steps` policy steps per suite after `wait_steps` steps of `wait_action` ([7], gripper -1 = open), in
    which objects fall to rest; `trials` episodes per task from the first init states on; the environment is seeded with
    `env_seed` once per task.
    Pictures: `cameras` at `camera_size`², turned by 180°, through JPEG at `jpeg_quality` (4:2:0; None: not), resized to
    `image_size`² (Lanczos3, antialiased), the middle `crop_area` of them cut out and stretched back (None: not).
    Policy: `prompt` with `{instruction}` in lower case, `prompt_suffix_token` appended where it is not the last token;
    `unnorm_keys` in order of preference; `gripper` is the convention of the policy's raw actions.
    `simulator` are the package versions with which the published figures came out again.
    """

    name: str
    source: str
    max_steps: Mapping[str, int]
    wait_steps: int = 10
    wait_action: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
    trials: int = 50
    env_seed: int = 0
    cameras: tuple[str, ...] = ("agentview",)
    camera_size: int = 256
    rotate_180: bool = True
    jpeg_quality: int | None = 95
    image_size: int = 224
    crop_area: float | None = 0.9
    prompt: str = "In: What action should the robot take to {instruction}?\nOut:"
    prompt_suffix_token: int | None = 29871
    unnorm_keys: tuple[str, ...] = ("{suite}", "{suite}_no_noops")
    gripper: str = "openvla"
    simulator: Mapping[str, str] = field(default_factory=lambda: SIMULATOR)
    published: tuple[Published, ...] = field(default=())

    def prompt_for(self, instruction: str) -> str:
        """Returns the text that a policy of this profile is asked with."""
        return self.prompt.format(instruction=instruction.lower())

    def protocol(self) -> dict[str, object]:
        """Returns what two runs under this name must share beside step limit and seed: wait and pictures."""
        names = ("wait_steps", "wait_action", "camera_size", "rotate_180", "jpeg_quality", "image_size", "crop_area")
        return {name: getattr(self, name) for name in names}

    def unnorm_keys_for(self, suite: str) -> tuple[str, ...]:
        """Returns the keys under which a checkpoint may keep its statistics for `suite`, the best first."""
        return tuple(key.format(suite=suite) for key in self.unnorm_keys)

    def steps_for(self, suite: str) -> int:
        """Returns the step limit of an episode of `suite`. Raises ValueError for a suite without one."""
        if suite not in self.max_steps:
            raise ValueError(
                f"profile {self.name!r} has no step limit for suite {suite!r}; known: {', '.join(self.max_steps)}"
            )
        return self.max_steps[suite]

    def published_for(self, suite: str) -> tuple[Published, ...]:
        """Returns the published rows that name `suite`."""
        return tuple(row for row in self.published if suite in row.success_percent)


def _percent(spatial: float, obj: float, goal: float, ten: float) -> Mapping[str, float]:
    return MappingProxyType(dict(zip(SUITES[:4], (spatial, obj, goal, ten), strict=True)))


_PUBLISHED = (
    Published(
        "OpenVLA 7B, fine-tuned per suite", "arXiv:2406.09246", "3 seeds x 500", _percent(84.7, 88.4, 79.2, 53.7), True
    ),
    Published("OpenVLA-OFT", "arXiv:2502.19645", "500", _percent(97.6, 98.4, 97.9, 94.5)),
    Published("pi0.5", "openpi, examples/libero", "500", _percent(98.8, 98.2, 98.0, 92.4)),
    Published("GR00T N1.5", "Isaac-GR00T, examples/Libero", "5 per task", _percent(92.0, 92.0, 86.0, 76.0)),
)

PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        "openvla": Profile(
            name="openvla",
            source="openvla@c8f03f48 experiments/robot/libero/run_libero_eval.py",
            max_steps=MappingProxyType(
                {
                    "libero_spatial": 220,  # the longest training demonstration has 193 steps
                    "libero_object": 280,  # 254
                    "libero_goal": 300,  # 270
                    "libero_10": 520,  # 505
                    "libero_90": 400,  # 373
                }
            ),
            published=_PUBLISHED,
        ),
    }
)


def profile(name: str) -> Profile:
    """Returns the profile called `name`. Raises ValueError, with the nearest name, when there is none."""
    if name not in PROFILES:
        raise ValueError(f"profile {name!r} not found{did_you_mean(name, PROFILES)}")
    return PROFILES[name]
