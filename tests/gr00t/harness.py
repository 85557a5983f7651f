"""What several tests need: layouts of every embodiment, observations, bodies of GR00T's clients, a small policy."""

import http.client
import json
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np

from services.gr00t.embodiments import EMBODIMENTS
from services.gr00t.layout import Layout, layout
from services.gr00t.tiny import metadata
from vla_contract import ActionChunk, Observation, Policy, PolicyInfo
from vla_contract.protocol.act_json import to_json

NAMES = tuple(EMBODIMENTS)


def layout_of(name: str, side: int = 96) -> Layout:
    """Returns an embodiment's layout with the sizes of made-up statistics."""
    one = EMBODIMENTS[name]
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
    for name, size in sizes.state.items():
        body[f"state.{name}"] = to_json(observation.state[None, start : start + size].astype(np.float64))
        start += size
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


@dataclass
class StatePolicy(Policy):
    """Answers the first seven numbers of the state, then the same doubled: every number can be followed."""

    sizes: Layout

    def info(self) -> PolicyInfo:
        one = self.sizes.embodiment
        return PolicyInfo(
            "state",
            self.sizes.action_parts,
            self.sizes.state_parts,
            cameras=tuple(one.cameras),
            image_hw=self.sizes.image_hw,
            horizon=2,
        )

    def example(self) -> Observation:
        return observe(self.sizes)

    def act(self, observations: list[Observation]) -> list[ActionChunk]:
        return [ActionChunk(np.stack([o.state[:7], 2 * o.state[:7]])) for o in observations]
