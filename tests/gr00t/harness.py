"""What several tests need: layouts of every embodiment, observations, bodies of GR00T's clients, a small policy."""

import http.client
import json
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np

from services.gr00t.checkpoint.embodiment import embodiment, shipped
from services.gr00t.checkpoint.tiny import metadata
from services.gr00t.service.layout import Layout, layout
from vla_contract import ActionChunk, Observation, Policy, PolicyInfo
from vla_contract.protocol.act_json import to_json

EVERY = shipped()
NAMES = ("libero", "libero_mean_std", "oxe_droid", "gr1_arms_only", "agibot_genie1", "so100")


def layout_of(name: str, side: int = 96) -> Layout:
    """Returns an embodiment's layout with the sizes of made-up statistics."""
    one = embodiment(name)
    return layout(one, metadata(one, side))


def observe(sizes: Layout, seed: int = 0, instruction: str = "pick up the cup", **changes) -> Observation:
    """Returns an observation of random pictures and state."""
    random = np.random.default_rng(seed)
    images = {name: random.integers(0, 256, (*sizes.image_hw, 3), np.uint8) for name in sizes.embodiment.cameras}
    state = random.normal(size=sizes.state_size).astype(np.float32)
    values = {"images": images, "state": state, "instruction": instruction, "session": f"run.0.{seed}.0.a", "step": 0}
    return Observation(**{**values, **changes})


def body_of(observation: Observation, sizes: Layout) -> dict:
    """Returns the observation as GR00T's HTTP client sends it: json_numpy arrays with one time step, float64 state."""
    one = sizes.embodiment
    body = {f"video.{name}": to_json(observation.images[ours][None]) for ours, name in one.cameras.items()}
    start = 0
    for part in sizes.state:
        end = start + part.size
        body[f"state.{part.name}"] = to_json(observation.state[None, start:end].astype(np.float64))
        start = end
    return {**body, one.language: [observation.instruction]}


def post(url: str, body: object, headers: dict[str, str] | None = None) -> tuple[int, str, object]:
    """Returns status, media type and JSON value of `POST /act`."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", "/act", content, {"Content-Type": "application/json", **(headers or {})})
    answer = connection.getresponse()
    value = json.loads(answer.read())
    connection.close()
    return answer.status, answer.getheader("Content-Type"), value


def info_of(sizes: Layout, horizon: int) -> PolicyInfo:
    """Returns what a policy of this layout says of itself."""
    one = sizes.embodiment
    return PolicyInfo(
        "state",
        sizes.action_parts,
        sizes.state_parts,
        cameras=tuple(one.cameras),
        image_hw=sizes.image_hw,
        horizon=horizon,
        max_batch=4,
    )


@dataclass
class StatePolicy(Policy):
    """Answers the first numbers of the state, then the same doubled: every number can be followed."""

    sizes: Layout

    def info(self) -> PolicyInfo:
        return info_of(self.sizes, 2)

    def example(self) -> Observation:
        return observe(self.sizes)

    def act(self, observations: list[Observation]) -> list[ActionChunk]:
        return [ActionChunk(followed(observation, self.sizes)) for observation in observations]


def followed(observation: Observation, sizes: Layout) -> np.ndarray:
    """Returns what StatePolicy answers, float32 [2, n]: the state's numbers as often as an action needs them."""
    first = np.resize(observation.state, sizes.action_size)
    return np.stack([first, 2 * first])
