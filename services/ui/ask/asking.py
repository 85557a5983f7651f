"""One question to policies: what the form holds, checked and asked, and the answers with all that the page shows."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any, BinaryIO

from services.ui.ask import actions, images, motion, needs
from services.ui.ask.link import PolicyLink, Trouble
from services.ui.ask.needs import Needs
from vla_contract import ActionChunk, InvalidObservation, Observation, PolicyError, PolicyInfo
from vla_contract.protocol.errors import did_you_mean

log = logging.getLogger("services.ui")
CROPPED = (None, "openvla")  # the protocols whose pictures are cut: others show all of them
CROP_AREA = 0.9  # of LIBERO's protocol: the middle that OpenVLA's LIBERO checkpoints are shown
STAGES = ("decode", "queue", "infer", "encode", "network")  # of the server in order; the rest is the way there and back


class FormError(ValueError):
    """The form is incomplete; the text says all that is missing, a sentence on each line."""


@dataclass(frozen=True)
class Form:
    """What a user filled in.

    state     as `needs.filled_in` writes it
    pictures  open files: what the policies' first camera saw, then one for each of `needed.more`; None: not uploaded
    needed    what the page has fields for; of several policies, what they need together
    """

    instruction: str
    unnorm_key: str | None = None
    as_libero: bool = False
    state: str = ""
    pictures: Sequence[BinaryIO | None] = (None,)
    needed: Needs = field(default_factory=Needs)

    def by_camera(self, info: PolicyInfo) -> dict[str, BinaryIO | None]:
        """Return each camera's picture that a policy needs."""
        further = dict(zip(self.needed.more, self.pictures[1:], strict=False))
        return {name: further.get(name) if n else self.pictures[0] for n, name in enumerate(info.cameras)}


@dataclass(frozen=True)
class Answer:
    """What one policy answered to which observation; or only the trouble, with the HTTP status for it."""

    trouble: Trouble | None = None
    status: int = 200
    info: PolicyInfo | None = None
    observation: Observation | None = None
    chunk: ActionChunk | None = None

    @property
    def spec(self) -> actions.Spec:
        """What the numbers of an action are."""
        return actions.spec(self.info, self.observation.unnorm_key)

    @property
    def numbers(self) -> list[actions.Number]:
        """The first action."""
        return actions.numbers(self.chunk.actions[0], self.spec)

    @property
    def motion(self) -> motion.Drawing | None:
        """What the chunk does, drawn."""
        return motion.drawn(motion.motion(self.chunk, self.spec))

    @property
    def stages(self) -> dict[str, float]:
        """The round trip in parts that add up to it [ms]."""
        return split(self.chunk.timings_ms)

    @property
    def inside(self) -> dict[str, float]:
        """What the policy itself counts [ms]."""
        return {name: ms for name, ms in self.chunk.timings_ms.items() if name not in (*STAGES, "round_trip")}

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        if self.trouble:
            return self.trouble.to_dict()
        seen = self.observation
        return {
            "policy": self.info.name,
            "instruction": seen.instruction,
            "unnorm_key": seen.unnorm_key,
            "state": None if seen.state is None else [round(value, 6) for value in seen.state.tolist()],
            "pictures": {name: list(image.shape) for name, image in seen.images.items()},
            "action": [asdict(part) for part in self.info.action],
            "actions": [[round(value, 6) for value in action] for action in self.chunk.actions.tolist()],
            "timings_ms": {stage: round(ms, 3) for stage, ms in self.chunk.timings_ms.items()},
        }


def ask_all(links: Mapping[str, PolicyLink], form: Form) -> dict[str, Answer]:
    """Return each policy's answer; several are asked at the same time, each with a key that it has."""
    if len(links) == 1:
        return {name: ask(link, form) for name, link in links.items()}
    with ThreadPoolExecutor(len(links)) as pool:
        forms = [_with_own_key(form, link.status().info) for link in links.values()]
        return dict(zip(links, pool.map(ask, links.values(), forms), strict=True))


def ask(link: PolicyLink, form: Form) -> Answer:
    """Return the policy's answer, or the trouble in words. Raises nothing, whatever the form or the policy do."""
    info, trouble = link.status().info, link.status().trouble
    if trouble is not None:
        return Answer(trouble, 503 if trouble.passing else 502)
    try:
        observation = observe(form, info)
        return Answer(info=info, observation=observation, chunk=link.act(observation, info))
    except PolicyError as error:
        log.warning("%s", error)
        trouble = link.explain(error)
        return Answer(trouble, 503 if trouble.passing else 502)
    except images.ImageError as error:
        return Answer(unusable(error), 400)
    except (FormError, InvalidObservation) as error:
        return Answer(Trouble("Not asked yet", _sentence(error), "Then ask again."), 400)


def unusable(error: Exception) -> Trouble:
    """Return in words that a picture cannot be read."""
    return Trouble(
        "This picture cannot be used", _sentence(error), "The policy is not asked with it; choose another one."
    )


def observe(form: Form, info: PolicyInfo) -> Observation:
    """Return what to send: step 0 of a session of its own.

    Raises FormError, ImageError or InvalidObservation where the form does not hold what the policy needs.
    """
    if wrong := _wrong(form, info):
        raise FormError("\n".join(wrong))
    size = libero_size(info) if form.as_libero else None
    fitted = (size, CROP_AREA) if size is not None else (info.image_hw, None)
    files = form.by_camera(info)
    left = images.budget(len(files))
    return Observation(
        images={camera: images.fit(images.read(file, left), *fitted) for camera, file in files.items()},
        state=needs.numbers(form.state, info.state, form.needed.state),
        instruction=_instruction(form),
        session=f"page-{uuid.uuid4().hex}",
        step=0,
        unnorm_key=_key(form) if info.unnorm_keys else None,  # one left over from another policy is not sent
    )


def libero_size(info: PolicyInfo) -> tuple[int, int] | None:
    """Return the (height, width) to which LIBERO's evaluation would bring a picture for this policy; None: not its job.

    OpenVLA takes a picture of any size and names its model's among the details.
    """
    if info.profile not in CROPPED or not any(name.startswith("libero") for name in (*info.unnorm_keys, *info.suites)):
        return None
    side = str(info.details.get("image_size", ""))
    return info.image_hw or ((int(side), int(side)) if side.isdigit() else None)


def libero_is_usual(info: PolicyInfo, unnorm_key: str | None) -> bool:
    """Return whether a picture for that key (None: any of the policy's) is usually prepared as LIBERO's are."""
    return libero_size(info) is not None and (unnorm_key is None or unnorm_key.startswith("libero"))


def fitting_key(suite: str | None, keys: Sequence[str]) -> str | None:
    """Return the one key of a suite: its name, or its name with an ending; None where there is none, or several."""
    fitting = [key for key in keys if suite is not None and key.startswith(suite)]
    return suite if suite in fitting else fitting[0] if len(fitting) == 1 else None


def chosen_key(key: str | None, keys: Sequence[str], suites: Sequence[str]) -> str | None:
    """Return the key to select: the one that was, the only one, or the one of the checkpoint's suite; else None."""
    previous = fitting_key(key, keys)  # a key, or an example's suite
    of_suites = [key for key in keys if any(key.startswith(suite) for suite in suites)]
    for choice in ([previous] if previous else [], keys, of_suites):
        if len(choice) == 1:
            return choice[0]
    return None


def split(timings_ms: Mapping[str, float]) -> dict[str, float]:
    """Return the round trip in parts [ms] that add up to it: the server's stages, and the network with this page."""
    parts = {stage: float(timings_ms[stage]) for stage in STAGES if stage in timings_ms}
    if "round_trip" in timings_ms:
        parts["network"] = max(0.0, timings_ms["round_trip"] - sum(parts.values()))
    return parts


def details(info: PolicyInfo) -> dict[str, str]:
    """Return the policy's identity in words; an empty text where there is nothing to tell."""
    size = f"{info.image_hw[1]}×{info.image_hw[0]}" if info.image_hw else "any size"
    checkpoint = info.checkpoint
    return {
        "policy": info.name,
        "checkpoint": checkpoint.repo if checkpoint else "none: a policy without weights",
        "revision": checkpoint.revision if checkpoint else "",
        "weights sha256": (checkpoint.sha256 or "unknown")[:16] if checkpoint else "",
        "quantization": info.quantization,
        "device": info.device,
        "attention": str(info.details.get("attention", "")),
        "pictures": f"{', '.join(info.cameras)}; {size}" if info.cameras else "looks at none",
        "chunk": f"up to {info.horizon} actions" if info.horizon > 1 else "1 action",
        "made for": ", ".join(info.suites),
        "lock": (info.lock_hash or "")[:16],
    }


def _with_own_key(form: Form, info: PolicyInfo | None) -> Form:
    if info is None or not info.unnorm_keys:
        return form
    return replace(form, unnorm_key=chosen_key(_key(form), info.unnorm_keys, info.suites))


def _wrong(form: Form, info: PolicyInfo) -> list[str]:
    """Return a sentence for each thing that the policy needs and the form does not hold."""
    key, wrong = _key(form), []
    lacking = [camera for camera, file in form.by_camera(info).items() if file is None]
    if info.cameras and info.cameras[0] in lacking:
        wrong.append("The picture is missing; upload one or take an example below.")
    if further := [camera for camera in lacking if camera in info.cameras[1:]]:
        missing = f"The picture of camera {', '.join(further)} is missing; upload what it would see."
        if not set(further) <= set(form.needed.more[: needs.MORE_IMAGES]):
            missing += f" The page has fields for {needs.MORE_IMAGES} further cameras: choose fewer policies at once."
        wrong.append(missing)
    if not _instruction(form):
        wrong.append("The instruction is empty; type what the robot is to do.")
    if key is None and len(info.unnorm_keys) > 1:
        wrong.append("No unnorm key is chosen; choose whose statistics turn the policy's output into an action.")
    if key is not None and info.unnorm_keys and key not in info.unnorm_keys:
        wrong.append(f"Unnorm key {key!r} is not one of this policy{did_you_mean(key, info.unnorm_keys)}.")
    try:
        needs.numbers(form.state, info.state, form.needed.state)
    except needs.StateError as error:
        wrong.append(str(error))
    return wrong


def _instruction(form: Form) -> str:
    return " ".join(form.instruction.split())


def _key(form: Form) -> str | None:
    return (form.unnorm_key or "").strip() or None


def _sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")
