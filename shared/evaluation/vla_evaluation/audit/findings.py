"""Verdicts, and for every finding its likely cause and the fix in the frameworks people use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Word = Literal["fine", "wrong", "cannot tell", "not applicable"]


@dataclass(frozen=True)
class Verdict:
    """About one convention. findings: what is wrong, names that `ADVICE` explains; evidence: one line with figures."""

    convention: str
    verdict: Word
    evidence: str
    findings: tuple[str, ...] = ()

    @property
    def advice(self) -> tuple[tuple[str, str], ...]:
        """Pairs of likely cause and fix, one for each kind of finding."""
        return tuple(dict.fromkeys(ADVICE[advice_key(finding)] for finding in self.findings))

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {**asdict(self), "advice": [{"cause": cause, "fix": fix} for cause, fix in self.advice]}


def fine(convention: str, evidence: str) -> Verdict:
    return Verdict(convention, "fine", evidence)


def cannot_tell(convention: str, evidence: str) -> Verdict:
    return Verdict(convention, "cannot tell", evidence)


def not_applicable(convention: str, evidence: str) -> Verdict:
    return Verdict(convention, "not applicable", evidence)


def wrong(convention: str, findings: str | tuple[str, ...], evidence: str) -> Verdict:
    found = (findings,) if isinstance(findings, str) else findings
    assert all(advice_key(finding) in ADVICE for finding in found), found
    return Verdict(convention, "wrong", evidence, found)


def advice_key(finding: str) -> str:
    """Return the key of ADVICE: findings about one axis, part or camera share one."""
    return finding if finding in ADVICE else next((key for key in ADVICE if finding.startswith(key)), finding)


_TURN = (
    "OpenGL renders upside down; every training set turned its images in one way",
    "turn images as training did: by 180° (image[::-1, ::-1]) in the simulated sets of openpi, OpenVLA, GR00T and "
    "LeRobot, never only vertically",
)
_STATE = (
    "the state is not assembled as in the training set",
    "send position [3], axis-angle [3], both fingers [2] (openpi's observation/state, LeRobot's "
    "observation.state, GR00T's modality.json); compare meta/stats.json with one live state",
)
_SCALE = (
    "actions are normalised with statistics that are missing, applied twice or of another data set",
    "openpi: the norm_stats.json of this checkpoint's asset_id; OpenVLA: --unnorm-key of this suite; LeRobot: the "
    "postprocessor saved with the checkpoint; GR00T: its data config and metadata.json",
)
_AXES = (
    "an adapter rearranges, negates or turns the action vector for another robot or simulator",
    "return the training set's action vector as it is, and describe it in PolicyInfo.action",
)
_CHUNK = (
    "the server slices or orders the action chunk differently from training",
    "return the model's chunk from its first action on, in order: openpi's actions[:replan_steps], LeRobot's "
    "n_action_steps from index n_obs_steps - 1",
)
_HISTORY = (
    "the server keeps something of an earlier request: a buffer, a cache, an exponential average",
    "keep such state under observation.session, drop it at step 0 and in reset(); openpi's and LeRobot's policies "
    "have a reset() that the server must call",
)
_COLOUR = (
    "OpenCV reads BGR; models expect RGB",
    "convert once: cv2.cvtColor(image, cv2.COLOR_BGR2RGB), or image[..., ::-1]",
)
_CROP = (
    "the image is cropped, padded or resized differently from training",
    "OpenVLA: centre crop of 0.9 of the area, once (center_crop; the deploy server crops itself); openpi: "
    "resize_with_pad to 224; LeRobot: resize_imgs_with_padding of the checkpoint",
)
_RANGE = (
    "pixels are scaled twice, not at all, or to another range than in training",
    "send uint8 and scale once: openpi to [-1, 1] in the model, LeRobot to [0, 1] and then its normalizer, OpenVLA "
    "in its image processor",
)
_FORM = (
    "the prompt is not built as in training",
    "OpenVLA: 'In: What action should the robot take to {lower case}?\\nOut:'; openpi and LeRobot: the plain "
    "sentence of tasks.jsonl; GR00T: as its data config's annotation",
)
_CAMERAS = (
    "images arrive under another camera's name",
    "openpi: observation/image is the front, observation/wrist_image the wrist; LeRobot: rename_map to "
    "observation.images.*; GR00T: video.* of its data config",
)
_LATENCY = (
    "inference takes longer than the steps that a chunk covers",
    "execute more actions of each chunk, use a smaller model or a GPU; simulations wait, robots do not",
)
_NOISE = (
    "the policy samples (flow, diffusion, temperature) without a seed",
    "seed the noise from session and step, or say so: details={'sampling': 'unseeded'} in PolicyInfo",
)
_BATCH = (
    "rows of a batch are mixed: wrong padding mask, normalisation over the batch, or answers in another order",
    "test the model with one and with eight observations; set max_batch=1 until they agree",
)
_BLIND = (
    "training found a shortcut, images are blank on the policy's side, or one camera is fed twice",
    "look at the image in the policy's own process; LeRobot and openpi: check image masks and the image keys. A "
    "policy trained on few similar scenes may ignore images by itself",
)
ADVICE: Mapping[str, tuple[str, str]] = {
    "upside down": _TURN,
    "mirrored": _TURN,
    "turned by 180°": _TURN,
    "BGR": _COLOUR,
    "grey": ("images lose their colour on the way", "decode images as colour, and keep three channels"),
    "crop missing": _CROP,
    "cropped": _CROP,
    "range 0 to 1": _RANGE,
    "range -1 to 1": _RANGE,
    "cameras swapped": _CAMERAS,
    "ignores the images": _BLIND,
    "ignores camera": _CAMERAS,
    "stale images": _HISTORY,
    "ignores the instruction": (
        "the sentence is not passed to the model, is constant, or is kept from the first request",
        "print the prompt in the policy's process for two tasks; openpi: prompt, not default_prompt; GR00T: "
        "annotation.human.*; LeRobot: task",
    ),
    "instruction truncated": (
        "the tokenizer's maximum length is too short",
        "raise max_length (openpi: max_token_len)",
    ),
    "instruction kept": _HISTORY,
    "sensitive to": _FORM,
    "template": _FORM,
    "underscores expected": _FORM,
    "ignores the state": ("the state is not passed to the model, or masked", "LeRobot and GR00T: check the state keys"),
    "state order": _STATE,
    "state in": _STATE,
    "Euler angles": _STATE,
    "axis-angle": _STATE,
    "rotation": _STATE,
    "quaternion": _STATE,
    "gripper width": _STATE,
    "gripper's second finger": _STATE,
    "constant output": (
        "the model is not loaded, or its input is constant",
        "check the checkpoint's keys when loading",
    ),
    "gripper stuck": ("the gripper's number is overwritten or rounded", "return the model's last number unchanged"),
    "axis stuck": _AXES,
    "delayed by": _CHUNK,
    "first action dropped": _CHUNK,
    "chunk reversed": _CHUNK,
    "chunk too long": ("more actions are returned than were trained", "set horizon to the training's chunk length"),
    "absolute in place of delta": (
        "the policy returns targets, not movements",
        "openpi: DeltaActions and AbsoluteActions must be a pair; GR00T: absolute action keys need a conversion",
    ),
    "tool frame": _AXES,
    "order of axes": _AXES,
    "sign of": _AXES,
    "gripper sign": (
        "−1 opens in the simulators' controllers, 1 opens in Open X-Embodiment's data",
        "OpenVLA: normalize_gripper_action and invert_gripper_action, both or none; announce GRIPPER_OPENS or "
        "GRIPPER_CLOSES, whichever the policy returns",
    ),
    "gripper range": (
        "the gripper is in [0, 1] where [−1, 1] is announced, or the reverse",
        "announce GRIPPER_OPENS for [0, 1] and GRIPPER_CLOSES for [−1, 1], or convert: 2 g − 1",
    ),
    "metres": _SCALE,
    "degrees": _SCALE,
    "not un-normalised": _SCALE,
    "un-normalised twice": _SCALE,
    "scaled": _SCALE,
    "statistics of other data": _SCALE,
    "NaN": ("numbers overflow, often in fp16", "use bf16 or fp32, and clamp before un-normalising"),
    "errors": ("some observations are refused, or give NaN", "read the policy's log for the message"),
    "not deterministic": _NOISE,
    "sessions leak": _HISTORY,
    "keeps state": _HISTORY,
    "reset ignored": _HISTORY,
    "rows of a batch leak": _BATCH,
    "depends on the batch size": _BATCH,
    "too slow": _LATENCY,
    "claims": ("/v1/info differs from what the policy does", "correct PolicyInfo"),
}
