"""A server of OpenVLA or OpenVLA-OFT (`vla-scripts/deploy.py`) as a policy of the lab.

Wire format: openvla@c8f03f48 and openvla-oft@213c5ff8, vla-scripts/deploy.py. `POST /act` takes JSON with arrays as
json_numpy writes them and answers one action [7] or a list of them; on any error it answers the string "error" with
status 200, and the reason is in the server's log only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from types import MappingProxyType
from typing import Any

import numpy as np

from services.bridge.connection import AnswerTimeout, IncompatibleServer, ServerFailed, check_status, outcome
from services.bridge.policy import FIRST_S, MAX_HORIZON
from vla_contract import ActionChunk, Observation, Policy, PolicyInfo, PolicyLost
from vla_contract.client.transport import Transport
from vla_contract.protocol.act_json import loads, to_json
from vla_contract.protocol.parts import GRIPPER_OPENS, HAND_STATE, OSC_POSE, format_parts, total
from vla_contract.protocol.types import check_actions

ACTION = (*OSC_POSE, GRIPPER_OPENS)  # un-normalised, in LIBERO's data sets
IMAGE_HW = (224, 224)
SCHEMES = MappingProxyType({"act": "http", "acts": "https"})


@dataclass(frozen=True)
class RequestForm:
    """The request of one kind of server: the field of each camera, and the evaluation protocol of its models."""

    name: str
    images: Mapping[str, str]
    has_state: bool
    profile: str


FORMS = (
    RequestForm("openvla", MappingProxyType({"image": "agentview"}), False, "openvla"),
    RequestForm(
        "openvla-oft",
        MappingProxyType({"full_image": "agentview", "wrist_image": "robot0_eye_in_hand"}),
        True,
        "openvla-oft-server",
    ),
)


class ActPolicy(Policy):
    """Client of the server at an act:// (HTTP) or acts:// (HTTPS) address; sends one observation at a time.

    The first inference, on black images, determines the request form and the number of actions per answer.

    unnorm_key  statistics to request; empty: the server's only ones. OFT's servers have theirs from their own flags
    key         sent as `Authorization: Bearer …`, for a server behind a gateway

    Raises IncompatibleServer when the server answers neither form, PolicyLost when it cannot be reached.
    """

    def __init__(
        self, url: str, key: str | None, answer_s: float, unnorm_key: str = "", name: str = "", lock_hash: str = ""
    ):
        self.url, self.answer_s, self.unnorm_key, self._lock_hash = url, answer_s, unnorm_key, lock_hash
        scheme, _, rest = url.partition("://")
        self._transport = Transport(f"{SCHEMES[scheme]}://{rest.rstrip('/').removesuffix('/act')}")
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        self.horizon: int | None = None
        failures = []
        for self.form in FORMS:
            try:
                self.horizon = len(self._infer(self.example(), FIRST_S))
                break
            except ValueError as error:
                raise IncompatibleServer(f"{url}: {error}") from error
            except ServerFailed as error:
                failures.append(f"{error} to {self.form.name}'s request")
        else:
            hint = "its log says why. A checkpoint with several statistics needs --unnorm-key"
            raise IncompatibleServer(f"{url} {' and '.join(failures)}; {hint}")
        self._name = name or f"{self.form.name}-server"

    def info(self) -> PolicyInfo:
        """Return inputs and outputs of servers of this form; they do not state the model."""
        return PolicyInfo(
            name=self._name,
            action=ACTION,
            state=HAND_STATE if self.form.has_state else (),
            device="another server",
            cameras=tuple(self.form.images.values()),
            image_hw=IMAGE_HW,
            horizon=self.horizon,
            profile=self.form.profile,
            unnorm_keys=(self.unnorm_key,) if self.unnorm_key else (),
            lock_hash=self._lock_hash or None,
            details={"protocol": f"{self.form.name} /act"},
        )

    def example(self) -> Observation:
        """Return black images, a state of zeros and an instruction."""
        images = dict.fromkeys(self.form.images.values(), np.zeros((*IMAGE_HW, 3), np.uint8))
        return Observation(images, np.zeros(total(HAND_STATE), np.float32), "do something", "warm-up", 0)

    def act(self, observations: list[Observation]) -> list[ActionChunk | Exception]:
        """Return a chunk or an error for every observation."""
        return [self._chunk(observation) for observation in observations]

    def _chunk(self, observation: Observation) -> ActionChunk | Exception:
        return outcome(self.url, lambda: self._infer(observation, self.answer_s))

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def _infer(self, observation: Observation, within_s: float) -> np.ndarray:
        """Return the actions, float32 [T, 7]. Raises ValueError, ServerFailed, IncompatibleServer, PolicyLost."""
        request: dict[str, Any] = {key: to_json(observation.images[cam]) for key, cam in self.form.images.items()}
        request["instruction"] = observation.instruction
        if self.form.has_state:
            request["state"] = to_json(np.asarray(observation.state, np.float64))
        elif self.unnorm_key:
            request["unnorm_key"] = self.unnorm_key
        try:
            answer = self._transport.request("POST", "/act", within_s, self._headers, json.dumps(request).encode())
        except TimeoutError as error:
            raise AnswerTimeout(f"{self.url} gave no answer within {within_s:g} s") from error
        except OSError as error:
            raise PolicyLost(f"{self.url}: {error.strerror or error}") from error
        except HTTPException as error:
            raise IncompatibleServer(f"{self.url} does not speak HTTP: {error}") from error
        check_status(self.url, answer.status)
        if answer.status in (404, 405):
            problem = f"{self.url} answered HTTP {answer.status} to POST /act"
            raise IncompatibleServer(f"{problem}; it is not an OpenVLA server")
        if answer.status != 200:
            raise ServerFailed(f"answered HTTP {answer.status}")
        size = total(ACTION)
        try:
            value = loads(answer.body)
            if isinstance(value, str) and value == "error":
                raise ServerFailed('answered "error"')
            actions = np.atleast_2d(np.asarray(value, np.float64)).astype(np.float32)
            if actions.shape[1:] != (size,) or not 0 < len(actions) <= MAX_HORIZON:
                raise ValueError(f"the answer has shape {list(np.shape(value))}")
            check_actions(actions, size, self.horizon)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{error}; expected actions [{size}] or [T, {size}]: {format_parts(ACTION)}") from error
        return actions


def check_address(url: str) -> str:
    """Return an act:// or acts:// address. Raises ValueError for anything else."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise ValueError(f"invalid address {url!r} of an OpenVLA server; expected for example act://host:8000")
    Transport(f"{SCHEMES[scheme]}://{rest}")
    return url
