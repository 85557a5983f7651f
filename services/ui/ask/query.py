"""Check the form, query the policies, and prepare their answers for the page."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any, BinaryIO

from services.ui.ask import actions, images, inputs
from services.ui.ask.inputs import Requirements
from services.ui.ask.link import PolicyLink, Trouble, explain
from vla_contract import ActionChunk, InvalidObservation, Observation, PolicyError, PolicyInfo
from vla_contract.protocol.errors import did_you_mean
from vla_contract.protocol.image_budget import ImageBudget

log = logging.getLogger("services.ui")
CROPPED = (None, "openvla")  # protocols that crop images
CROP_AREA = 0.9  # of LIBERO's protocol: the centre crop of OpenVLA's LIBERO checkpoints
# of the server, in order; the rest is the round trip on the network
STAGES = ("decode", "queue", "infer", "encode", "network")


class FormError(ValueError):
    """The form is incomplete. The message has a line for each missing input."""


@dataclass(frozen=True)
class Form:
    """The submitted form.

    state     in the format of `inputs.format_state`
    pictures  open files: the first camera's image, then one for each of `needed.more`; None: not uploaded
    needed    the combined requirements of the selected policies
    """

    instruction: str
    unnorm_key: str | None = None
    as_libero: bool = False
    state: str = ""
    pictures: Sequence[BinaryIO | None] = (None,)
    needed: Requirements = field(default_factory=Requirements)

    def __post_init__(self):
        object.__setattr__(self, "instruction", " ".join(self.instruction.split()))
        object.__setattr__(self, "unnorm_key", (self.unnorm_key or "").strip() or None)

    def by_camera(self, info: PolicyInfo) -> dict[str, BinaryIO | None]:
        """Return the image of each camera that a policy needs."""
        further = dict(zip(self.needed.more, self.pictures[1:], strict=False))
        return {name: further.get(name) if n else self.pictures[0] for n, name in enumerate(info.cameras)}


@dataclass(frozen=True)
class Answer:
    """A policy's answer to an observation, or the trouble and its HTTP status."""

    trouble: Trouble | None = None
    status: int = 200
    info: PolicyInfo | None = None
    observation: Observation | None = None
    chunk: ActionChunk | None = None

    @property
    def spec(self) -> actions.Spec:
        """Names and parts of an action's numbers."""
        return actions.spec(self.info, self.observation.unnorm_key)

    @property
    def numbers(self) -> list[actions.Number]:
        """The numbers of the first action."""
        return actions.numbers(self.chunk.actions[0], self.spec)

    @property
    def motion(self) -> actions.Motion:
        """The motion of the chunk."""
        return actions.motion(self.chunk, self.spec)

    @property
    def stages(self) -> dict[str, float]:
        """The stages of the round trip, which add up to it [ms]."""
        timings_ms = self.chunk.timings_ms
        parts = {stage: float(timings_ms[stage]) for stage in STAGES if stage in timings_ms}
        if "round_trip" in timings_ms:
            parts["network"] = max(0.0, timings_ms["round_trip"] - sum(parts.values()))
        return parts

    @property
    def inside(self) -> dict[str, float]:
        """The policy's own timings [ms]."""
        return {name: ms for name, ms in self.chunk.timings_ms.items() if name not in (*STAGES, "round_trip")}

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON types."""
        if self.trouble:
            return self.trouble.to_dict()
        observation = self.observation
        return {
            "policy": self.info.name,
            "instruction": observation.instruction,
            "unnorm_key": observation.unnorm_key,
            "state": None if observation.state is None else [round(value, 6) for value in observation.state.tolist()],
            "pictures": {name: list(image.shape) for name, image in observation.images.items()},
            "action": [asdict(part) for part in self.info.action],
            "actions": [[round(value, 6) for value in action] for action in self.chunk.actions.tolist()],
            "timings_ms": {stage: round(ms, 3) for stage, ms in self.chunk.timings_ms.items()},
        }


def ask_all(links: Mapping[str, PolicyLink], form: Form) -> dict[str, Answer]:
    """Return each policy's answer. Several are queried in parallel, each with its own unnorm key."""
    if len(links) == 1:
        return {name: ask(link, form) for name, link in links.items()}
    forms = []
    for link in links.values():
        info = link.status().info
        keys, suites = (info.unnorm_keys, info.suites) if info else ((), ())
        forms.append(replace(form, unnorm_key=select_key(form.unnorm_key, keys, suites)) if keys else form)
    with ThreadPoolExecutor(len(links)) as pool:
        return dict(zip(links, pool.map(ask, links.values(), forms), strict=True))


def ask(link: PolicyLink, form: Form) -> Answer:
    """Return the policy's answer or the trouble. Raises nothing."""
    info, trouble = link.status().info, link.status().trouble
    try:
        if trouble is None:
            observation = observe(form, info)
            return Answer(info=info, observation=observation, chunk=link.act(observation, info))
    except PolicyError as error:
        log.warning("%s", error)
        trouble = explain(error, link.url)
    except (images.ImageError, FormError, InvalidObservation) as error:
        is_image = isinstance(error, images.ImageError)
        title = "This image cannot be used" if is_image else "Nothing was sent"
        todo = "Select another image." if is_image else "Correct this and ask again."
        text = str(error)
        detail = text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")
        return Answer(Trouble(title, detail, todo), 400)
    return Answer(trouble, 503 if trouble.passing else 502)


def observe(form: Form, info: PolicyInfo) -> Observation:
    """Return the observation to send: step 0 of a new session.

    Raises FormError, ImageError or InvalidObservation if the form lacks what the policy needs.
    """
    key, errors, files, state = form.unnorm_key, [], form.by_camera(info), None
    absent = [camera for camera, file in files.items() if file is None]
    if info.cameras and info.cameras[0] in absent:
        errors.append("The image is missing; upload one or select an example below.")
    if further := [camera for camera in absent if camera in info.cameras[1:]]:
        missing = f"The image of camera {', '.join(further)} is missing; upload one."
        if not set(further) <= set(form.needed.more[: inputs.MORE_IMAGES]):
            missing += f" The page supports {inputs.MORE_IMAGES} further cameras; select fewer policies."
        errors.append(missing)
    if not form.instruction:
        errors.append("The instruction is empty; enter a task for the robot.")
    if key is None and len(info.unnorm_keys) > 1:
        errors.append("No unnorm key is selected; select the data set whose statistics scale the output.")
    if key is not None and info.unnorm_keys and key not in info.unnorm_keys:
        errors.append(f"This policy has no unnorm key {key!r}{did_you_mean(key, info.unnorm_keys)}.")
    try:
        state = inputs.parse_state(form.state, info.state, form.needed.state)
    except inputs.StateError as error:
        errors.append(str(error))
    if errors:
        raise FormError("\n".join(errors))
    size = libero_size(info) if form.as_libero else None
    size_and_crop = (size, CROP_AREA) if size is not None else (info.image_hw, None)
    left = ImageBudget(len(files), images.MAX_BYTES)
    return Observation(
        images={camera: images.fit(images.read(file, left), *size_and_crop) for camera, file in files.items()},
        state=state,
        instruction=form.instruction,
        session=f"page-{uuid.uuid4().hex}",
        step=0,
        unnorm_key=key if info.unnorm_keys else None,  # ignore the key of another policy
    )


def libero_size(info: PolicyInfo) -> tuple[int, int] | None:
    """Return the (height, width) of images for this policy in LIBERO evaluations; None if it has none.

    OpenVLA accepts images of any size and reports its model's size in the details.
    """
    if info.profile not in CROPPED or not any(name.startswith("libero") for name in (*info.unnorm_keys, *info.suites)):
        return None
    side = str(info.details.get("image_size", ""))
    return info.image_hw or ((int(side), int(side)) if side.isdigit() else None)


def fitting_key(suite: str | None, keys: Sequence[str]) -> str | None:
    """Return the suite's key: its name, or the only key that starts with it; else None."""
    fitting = [key for key in keys if suite is not None and key.startswith(suite)]
    return suite if suite in fitting else fitting[0] if len(fitting) == 1 else None


def select_key(key: str | None, keys: Sequence[str], suites: Sequence[str]) -> str | None:
    """Return the key to preselect: that of `key` (a key or a suite), the only one, or the checkpoint suite's."""
    of_suites = [key for key in keys if key.startswith(tuple(suites))]
    choices = ([fitting_key(key, keys)], keys, of_suites)
    return next((choice[0] for choice in choices if len(choice) == 1 and choice[0]), None)
