"""Faults of served policies, planted one at a time around a healthy one. The audit does not import this module."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from PIL import Image
from scipy.spatial.transform import Rotation

from vla_contract import ActionChunk, Observation, Policy, PolicyInfo

FRONT, WRIST = "agentview", "robot0_eye_in_hand"
See = Callable[["Wrapped", Observation], Observation]
Do = Callable[["Wrapped", Observation, np.ndarray], np.ndarray]


@dataclass
class Fault:
    """see: what happens to an observation, do: to float32 [T, n] actions; found_as: findings that name the fault."""

    name: str
    found_as: tuple[str, ...]
    see: See = lambda wrapped, seen: seen
    do: Do = lambda wrapped, seen, actions: actions
    info: Callable[[PolicyInfo], PolicyInfo] = lambda info: info
    together: Callable[[list[np.ndarray]], list[np.ndarray]] = lambda rows: rows


@dataclass
class Wrapped(Policy):
    """A healthy policy behind faults, the first one nearest to it. ranges: [2, n], the recorded actions'."""

    policy: Policy
    faults: tuple[Fault, ...]
    ranges: np.ndarray
    kept: dict[str, object] = field(default_factory=dict)
    calls: int = 0

    def info(self) -> PolicyInfo:
        info = self.policy.info()
        for fault in self.faults:
            info = fault.info(info)
        return info

    def act(self, observations: list[Observation]) -> list[ActionChunk | Exception]:
        seen = list(observations)
        for fault in reversed(self.faults):
            seen = [fault.see(self, one) for one in seen]
        rows = [self._actions(chunk) for chunk in self.policy.act(seen)]
        for fault in self.faults:
            rows = [fault.do(self, one, row) for one, row in zip(observations, rows, strict=True)]
            rows = fault.together(rows)
        return [_chunk(row) for row in rows]

    @staticmethod
    def _actions(chunk: ActionChunk | Exception) -> np.ndarray:
        if isinstance(chunk, Exception):
            raise chunk
        return chunk.actions.copy()

    def reset(self, session: str) -> None:
        self.policy.reset(session)


def _chunk(row: np.ndarray) -> ActionChunk | Exception:
    try:
        return ActionChunk(np.ascontiguousarray(row, np.float32))
    except ValueError as error:
        return error


def on_images(change: Callable[[np.ndarray], np.ndarray], cameras: Iterable[str] = (FRONT, WRIST)) -> See:
    def see(_: Wrapped, seen: Observation) -> Observation:
        images = {k: np.ascontiguousarray(change(v)) if k in cameras else v for k, v in seen.images.items()}
        return replace(seen, images=images)

    return see


def crop(image: np.ndarray, side: float) -> np.ndarray:
    height, width = image.shape[:2]
    top, left = round(height * (1 - side) / 2), round(width * (1 - side) / 2)
    middle = Image.fromarray(np.ascontiguousarray(image[top : height - top, left : width - left]))
    return np.asarray(middle.resize((width, height), Image.Resampling.BILINEAR))


def border(image: np.ndarray, side: float) -> np.ndarray:
    height, width = image.shape[:2]
    small = Image.fromarray(image).resize((round(width * side), round(height * side)), Image.Resampling.BILINEAR)
    canvas = Image.new("RGB", (width, height))
    canvas.paste(small, ((width - small.width) // 2, (height - small.height) // 2))
    return np.asarray(canvas)


def swapped(_: Wrapped, seen: Observation) -> Observation:
    images = dict(seen.images)
    images[FRONT], images[WRIST] = images[WRIST], images[FRONT]
    return replace(seen, images=images)


def front_twice(_: Wrapped, seen: Observation) -> Observation:
    return replace(seen, images={**seen.images, WRIST: seen.images[FRONT]})


def stale(wrapped: Wrapped, seen: Observation) -> Observation:
    before = wrapped.kept.get("images", seen.images)
    wrapped.kept["images"] = seen.images
    return replace(seen, images=before)  # type: ignore[arg-type]


def on_sentence(change: Callable[[str], str]) -> See:
    return lambda _, seen: replace(seen, instruction=change(seen.instruction) or "?")


def kept_sentence(wrapped: Wrapped, seen: Observation) -> Observation:
    first = wrapped.kept.setdefault(f"text {seen.session}", seen.instruction)
    return replace(seen, instruction=str(first))


def on_state(change: Callable[[np.ndarray], np.ndarray]) -> See:
    return lambda _, seen: (
        seen if seen.state is None else replace(seen, state=change(seen.state.copy()).astype(np.float32))
    )


def _rotation(change: Callable[[np.ndarray], np.ndarray]) -> See:
    def new(state: np.ndarray) -> np.ndarray:
        state[3:6] = change(state[3:6].astype(np.float64))
        return state

    return on_state(new)


def _times(index: slice, factor: float) -> See:
    def new(state: np.ndarray) -> np.ndarray:
        state[index] *= factor
        return state

    return on_state(new)


def antipodal(vector: np.ndarray) -> np.ndarray:
    return vector * (1 - 2 * np.pi / max(np.linalg.norm(vector), 1e-6))


def factors(*values: float) -> Do:
    return lambda _, seen, actions: actions * np.array(values, np.float32)


def order(*index: int) -> Do:
    return lambda _, seen, actions: actions[:, list(index)]


def normalised(wrapped: Wrapped, seen: Observation, actions: np.ndarray) -> np.ndarray:
    low, high = wrapped.ranges
    actions[:, :6] = ((actions - low) / (high - low) * 2 - 1)[:, :6]
    return actions


def other_statistics(_: Wrapped, seen: Observation, actions: np.ndarray) -> np.ndarray:
    actions[:, :6] = actions[:, :6] * [0.4, 0.45, 2.2, 2.5, 0.4, 0.35] + [0.1, 0, -0.2, 0, 0.05, 0]
    return actions


def absolute(_: Wrapped, seen: Observation, actions: np.ndarray) -> np.ndarray:
    if seen.state is not None:
        actions[:, :3] = seen.state[:3] + 0.05 * np.cumsum(actions[:, :3], 0)
    return actions


def tool_frame(_: Wrapped, seen: Observation, actions: np.ndarray) -> np.ndarray:
    if seen.state is not None:
        inverse = Rotation.from_rotvec(seen.state[3:6]).inv()
        actions[:, :3], actions[:, 3:6] = inverse.apply(actions[:, :3]), inverse.apply(actions[:, 3:6])
    return actions


def on_gripper(change: Callable[[np.ndarray], np.ndarray]) -> Do:
    def do(_: Wrapped, seen: Observation, actions: np.ndarray) -> np.ndarray:
        actions[:, 6] = change(actions[:, 6])
        return actions

    return do


def other_range(wrapped: Wrapped, seen: Observation, actions: np.ndarray) -> np.ndarray:
    part = wrapped.info().action[-1]
    actions[:, 6] = (actions[:, 6] + 1) / 2 if part.low == -1 else 2 * actions[:, 6] - 1
    return actions


def delayed(_: Wrapped, seen: Observation, actions: np.ndarray) -> np.ndarray:
    return np.concatenate([actions[:1], actions[:-1]])


def too_long(_: Wrapped, seen: Observation, actions: np.ndarray) -> np.ndarray:
    return np.concatenate([actions, np.repeat(actions[-1:], len(actions), 0)])


def garbage_tail(wrapped: Wrapped, seen: Observation, actions: np.ndarray) -> np.ndarray:
    seed = int(np.abs(actions).sum() * 1e4) % 2**31
    noise = np.random.default_rng(seed).normal(size=actions.shape) * (actions.std(0) + 0.2)
    return np.concatenate([actions, noise.astype(np.float32)])


def doubled(info: PolicyInfo) -> PolicyInfo:
    return replace(info, horizon=2 * info.horizon)


def sometimes_nan(_: Wrapped, seen: Observation, actions: np.ndarray) -> np.ndarray:
    number = int(np.abs(actions).sum() * 1e4)
    if number % 33 == 0:
        actions[0, 0] = np.nan
    return actions


def leaking(wrapped: Wrapped, seen: Observation, actions: np.ndarray) -> np.ndarray:
    before = wrapped.kept.get("answer")
    wrapped.kept["answer"] = actions
    return actions if not isinstance(before, np.ndarray) else 0.7 * actions + 0.3 * before[: len(actions)]


def leaking_within(wrapped: Wrapped, seen: Observation, actions: np.ndarray) -> np.ndarray:
    before = wrapped.kept.get(seen.session)
    wrapped.kept[seen.session] = actions
    return actions if not isinstance(before, np.ndarray) else 0.7 * actions + 0.3 * before[: len(actions)]


def noisy(wrapped: Wrapped, seen: Observation, actions: np.ndarray) -> np.ndarray:
    wrapped.calls += 1
    noise = np.random.default_rng(wrapped.calls).normal(0, 0.1, actions.shape)
    return actions + noise.astype(np.float32)


def rows_leak(rows: list[np.ndarray]) -> list[np.ndarray]:
    mean = np.mean(rows, 0)
    return [0.5 * row + 0.5 * mean for row in rows]


def batch_size(rows: list[np.ndarray]) -> list[np.ndarray]:
    return [row * (1 - 0.2 * (len(rows) > 1)) for row in rows]


def slow(_: Wrapped, seen: Observation, actions: np.ndarray) -> np.ndarray:
    time.sleep(0.3)  # five actions last 0.25 s
    return actions


BLACK = ("ignores the images",)
FAULTS = [
    Fault("images upside down", ("upside down",), on_images(lambda i: i[::-1])),
    Fault("images mirrored", ("mirrored",), on_images(lambda i: i[:, ::-1])),
    Fault("images turned by 180°", ("turned by 180°",), on_images(lambda i: i[::-1, ::-1])),
    Fault("wrist image turned by 180°", ("turned by 180°",), on_images(lambda i: i[::-1, ::-1], (WRIST,))),
    Fault("BGR", ("BGR",), on_images(lambda i: i[..., ::-1])),
    Fault("cameras swapped", ("cameras swapped",), swapped),
    Fault("front image under both names", (f"ignores camera {WRIST}",), front_twice),
    Fault("strong crop", ("cropped", "cropped strongly"), on_images(lambda i: crop(i, 0.7))),
    Fault("light crop", ("cropped", "cropped strongly"), on_images(lambda i: crop(i, 0.9))),
    Fault("border around images", ("crop missing",), on_images(lambda i: border(i, 0.9))),
    Fault("pixels 0 to 1 as 0 to 255", BLACK, on_images(lambda i: i // 255)),
    Fault(
        "pixels multiplied by 255",
        (*BLACK, "range 0 to 1 read as -1 to 1"),
        on_images(lambda i: np.where(i > 0, 255, 0).astype(np.uint8)),
    ),
    Fault("pixels 0 to 1 as -1 to 1", ("range 0 to 1 read as -1 to 1",), on_images(lambda i: i // 2 + 127)),
    Fault("stale images", ("stale images",), stale),
    Fault("grey images", ("grey",), on_images(lambda i: np.asarray(Image.fromarray(i).convert("L").convert("RGB")))),
    Fault("instruction ignored", ("ignores the instruction",), on_sentence(lambda t: "do something")),
    Fault(
        "OpenVLA's prompt expected",
        ("template of OpenVLA missing",),
        on_sentence(lambda t: t[43:].split("?")[0] if t.startswith("In: What") else "do something"),
    ),
    Fault("upper case not understood", ("sensitive to case",), on_sentence(lambda t: t if t.islower() else "?")),
    Fault("full stop not understood", ("sensitive to punctuation",), on_sentence(lambda t: "?" if "." in t else t)),
    Fault("instruction truncated", ("instruction truncated",), on_sentence(lambda t: " ".join(t.split()[:3]))),
    Fault("state ignored", ("ignores the state",), on_state(np.zeros_like)),
    Fault("state order", ("state order",), on_state(lambda s: np.concatenate([s[6:], s[:6]]))),
    Fault("state in degrees", ("state in degrees",), _times(slice(3, 6), 57.29578)),
    Fault(
        "Euler angles",
        ("Euler angles in place of axis-angle",),
        _rotation(lambda v: Rotation.from_rotvec(v).as_euler("xyz")),
    ),
    Fault("antipodal rotation", ("rotation with the antipodal sign",), _rotation(antipodal)),
    Fault("gripper width halved", ("gripper width halved",), _times(slice(6, 8), 0.5)),
    Fault("gripper width negated", ("gripper width negated",), _times(slice(6, 8), -1)),
    Fault("sign of x", ("sign of position delta 0",), do=factors(-1, 1, 1, 1, 1, 1, 1)),
    Fault("sign of z", ("sign of position delta 2",), do=factors(1, 1, -1, 1, 1, 1, 1)),
    Fault("x and y exchanged", ("order of axes, position delta",), do=order(1, 0, 2, 3, 4, 5, 6)),
    Fault("metres", ("metres in place of normalised", "scaled"), do=factors(0.05, 0.05, 0.05, 0.5, 0.5, 0.5, 1)),
    Fault("half the size", ("scaled", "statistics of other data"), do=factors(0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1)),
    Fault("not un-normalised", ("not un-normalised", "statistics of other data"), do=normalised),
    Fault("statistics of other data", ("statistics of other data",), do=other_statistics),
    Fault("absolute positions", ("absolute in place of delta",), do=absolute),
    Fault("tool frame", ("tool frame in place of base frame",), do=tool_frame),
    Fault("gripper sign", ("gripper sign",), do=on_gripper(np.negative)),
    Fault("gripper range", ("gripper range",), do=other_range),
    Fault("gripper stuck", ("gripper stuck",), do=on_gripper(lambda g: 0 * g - 1)),
    Fault("delayed by one step", ("delayed by one step",), do=delayed),
    Fault("chunk reversed", ("chunk reversed",), do=lambda w, s, a: a[::-1]),
    Fault("first action dropped", ("first action dropped",), do=lambda w, s, a: a[1:] if len(a) > 1 else a),
    Fault("last action repeated", ("chunk too long",), do=too_long, info=doubled),
    Fault("chunk longer than trained", ("chunk too long",), do=garbage_tail, info=doubled),
    Fault("constant output", ("constant output",), do=lambda w, s, a: 0 * a + 0.1),
    Fault("NaN in rare cases", ("NaN", "errors"), do=sometimes_nan),
    Fault("sessions leak", ("sessions leak",), do=leaking),
    Fault("session keeps answers", ("keeps state between requests of a session",), do=leaking_within),
    Fault("not deterministic", ("not deterministic",), do=noisy),
    Fault("rows of a batch leak", ("rows of a batch leak",), together=rows_leak),
    Fault("depends on the batch size", ("depends on the batch size",), together=batch_size),
    Fault("instruction kept", ("instruction kept",), kept_sentence),
    Fault("reset ignored", ("reset ignored",), do=leaking_within, info=lambda i: replace(i, stateful=True)),
    Fault("too slow", ("too slow",), do=slow),
    Fault("claims a longer chunk", ("claims a longer chunk",), info=doubled),
]
BY_NAME = {fault.name: fault for fault in FAULTS}
