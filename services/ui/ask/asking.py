"""One question to the policy: what the form holds, checked, asked, and answered as HTML and JSON."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field

import numpy as np

from services.ui.ask import actions, images, motion, needs, views
from services.ui.ask.link import PolicyLink, Trouble
from services.ui.ask.needs import Needs
from vla_contract import ActionChunk, InvalidObservation, Observation, PolicyError, PolicyInfo
from vla_contract.protocol.errors import did_you_mean

log = logging.getLogger("services.ui")
CROPPED = (None, "openvla")  # the protocols whose pictures are cut: others show all of them
CROP_AREA = 0.9  # of LIBERO's protocol: the middle that OpenVLA's LIBERO checkpoints are shown


class FormError(ValueError):
    """The form is incomplete; the text says all that is missing, a sentence on each line."""


@dataclass(frozen=True)
class Form:
    """What somebody filled in.

    picture   a file's path: what the policy's first camera saw
    state     as `needs.filled_in` writes it
    more      further pictures, one for each of `needed.more`
    needed    what the page has fields for; of several policies, what they need together
    """

    picture: str | None
    instruction: str
    unnorm_key: str | None
    as_libero: bool
    state: str = ""
    more: tuple[str | None, ...] = ()
    needed: Needs = field(default_factory=Needs)

    def pictures(self, info: PolicyInfo) -> dict[str, str | None]:
        """Returns the path of each camera's picture that a policy needs; None: not uploaded."""
        further = self.needed.pictures(self.more)
        return {name: further.get(name) if place else self.picture for place, name in enumerate(info.cameras)}


@dataclass(frozen=True)
class Answer:
    """The page's pieces: numbers and motion (or the error), the chunk, the latency, all of it as JSON."""

    numbers: str
    chunk: str = ""
    latency: str = ""
    raw: str = ""


def ask(link: PolicyLink, form: Form) -> Answer:
    """Returns the policy's answer, or the error in words. Raises nothing for whatever the form or the policy do."""
    status = link.status()
    if status.trouble is not None:
        return Answer(views.trouble(status.trouble))
    try:
        observation = observe(form, status.info)
        return _show(link.act(observation, status.info), status.info, observation)
    except PolicyError as error:
        log.warning("%s", error)
        return Answer(views.trouble(link.explain(error)))
    except images.ImageError as error:
        return Answer(unusable(error))
    except (FormError, InvalidObservation) as error:
        return Answer(views.trouble(Trouble("Not asked yet", _sentence(error), "Then ask again.")))


def ask_several(links: Mapping[str, PolicyLink], forms: Sequence[Form]) -> Answer:
    """Returns the answers of several policies, each to its form, side by side; they are asked at the same time."""
    with ThreadPoolExecutor(len(links)) as pool:
        answers = dict(zip(links, pool.map(ask, links.values(), forms), strict=True))
    columns = {name: one.numbers + one.chunk + one.latency for name, one in answers.items()}
    raw = ",\n".join(f"{json.dumps(name)}: {one.raw or 'null'}" for name, one in answers.items())
    return Answer(views.side_by_side(columns), raw=f"{{\n{raw}\n}}")


def unusable(error: images.ImageError) -> str:
    """Returns the card for a picture that cannot be read."""
    todo = "The policy is not asked with it; choose another one."
    return views.trouble(Trouble("This picture cannot be used", _sentence(error), todo))


def observe(form: Form, info: PolicyInfo) -> Observation:
    """Returns what to send: step 0 of a session of its own.

    Raises FormError, ImageError or InvalidObservation where the form does not hold what the policy needs.
    """
    if wrong := _wrong(form, info):
        raise FormError("\n".join(wrong))
    return Observation(
        images=_images(form, info),
        state=needs.numbers(form.state, info.state, form.needed.state),
        instruction=_instruction(form),
        session=f"page-{uuid.uuid4().hex}",
        step=0,
        unnorm_key=_key(form) if info.unnorm_keys else None,  # one left over from another policy is not sent
    )


def libero_size(info: PolicyInfo) -> tuple[int, int] | None:
    """Returns the (height, width) that LIBERO's evaluation would bring a picture to for this policy; None: not its job.

    OpenVLA takes a picture of any size and names its model's among the details.
    """
    if info.profile not in CROPPED or not any(name.startswith("libero") for name in (*info.unnorm_keys, *info.suites)):
        return None
    side = str(info.details.get("image_size", ""))
    return info.image_hw or ((int(side), int(side)) if side.isdigit() else None)


def libero_is_usual(info: PolicyInfo, unnorm_key: str | None) -> bool:
    """Returns whether a picture for that key (None: any of the policy's) is usually prepared as LIBERO's are."""
    return libero_size(info) is not None and (unnorm_key is None or unnorm_key.startswith("libero"))


def _wrong(form: Form, info: PolicyInfo) -> list[str]:
    """Returns a sentence for each thing that the policy needs and the form does not hold."""
    key, said = _key(form), []
    lacking = [camera for camera, path in form.pictures(info).items() if not path]
    if info.cameras and info.cameras[0] in lacking:
        said.append("The picture is missing; upload one or take an example below.")
    if further := [camera for camera in lacking if camera in info.cameras[1:]]:
        said.append(_further(further, form.needed))
    if not _instruction(form):
        said.append("The instruction is empty; type what the robot is to do.")
    if key is None and len(info.unnorm_keys) > 1:
        said.append("No unnorm key is chosen; choose whose statistics turn the policy's output into an action.")
    if key is not None and info.unnorm_keys and key not in info.unnorm_keys:
        said.append(f"Unnorm key {key!r} is not one of this policy{did_you_mean(key, info.unnorm_keys)}.")
    try:
        needs.numbers(form.state, info.state, form.needed.state)
    except needs.StateError as error:
        said.append(str(error))
    return said


def _further(cameras: Sequence[str], needed: Needs) -> str:
    said = f"The picture of camera {', '.join(cameras)} is missing; upload what it would see."
    if set(cameras) <= set(needed.more[: needs.MORE_PICTURES]):
        return said
    return f"{said} The page has fields for {needs.MORE_PICTURES} further cameras: choose fewer policies at once."


def _instruction(form: Form) -> str:
    return " ".join((form.instruction or "").split())


def _key(form: Form) -> str | None:
    return (form.unnorm_key or "").strip() or None


def _images(form: Form, info: PolicyInfo) -> dict[str, np.ndarray]:
    size = libero_size(info) if form.as_libero else None
    fitted = (size, CROP_AREA) if size is not None else (info.image_hw, None)
    paths = form.pictures(info)
    left = images.budget(len(paths))
    return {camera: images.fit(images.read(path, left), *fitted) for camera, path in paths.items()}


def _show(answer: ActionChunk, info: PolicyInfo, observation: Observation) -> Answer:
    spec = actions.spec(info, observation.unnorm_key)
    numbers = views.numbers(actions.numbers(answer.actions[0], spec), spec)
    return Answer(
        numbers=numbers + motion.drawn(motion.motion(answer, spec)),
        chunk=views.chunk(answer, spec),
        latency=views.latency(answer.timings_ms),
        raw=_json(answer, info, observation),
    )


def _json(answer: ActionChunk, info: PolicyInfo, observation: Observation) -> str:
    asked = {
        "policy": info.name,
        "instruction": observation.instruction,
        "unnorm_key": observation.unnorm_key,
        "state": None if observation.state is None else [round(value, 6) for value in observation.state.tolist()],
        "pictures": {name: list(image.shape) for name, image in observation.images.items()},
        "action": [asdict(part) for part in info.action],
        "actions": [[round(value, 6) for value in action] for action in answer.actions.tolist()],
        "timings_ms": {stage: round(ms, 3) for stage, ms in answer.timings_ms.items()},
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in asked.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def _sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")
