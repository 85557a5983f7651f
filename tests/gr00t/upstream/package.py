"""Isaac-GR00T's package: whether it is there, how it is imported, and how a policy is loaded with it."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from services.gr00t.checkpoint.embodiment import Embodiment, Transform
from services.gr00t.checkpoint.tokenizer import SOURCE_VARIABLE, UPSTREAM_DIRECTORY

if TYPE_CHECKING:
    from services.gr00t.model.attention import AttentionKernel

COMMIT = "4af2b622892f7dcb5aae5a3fb70bcb02dc217b96"  # branch n1.5-release
HORIZON, STATE_DIM, ACTION_DIM = 16, 64, 32  # of every published N1.5 checkpoint


class UpstreamMissing(ValueError):
    """Isaac-GR00T's package cannot be imported here; the text says how to get it."""


def missing() -> str | None:
    """Returns how to get upstream's package, or None where it is here."""
    source = os.environ.get(SOURCE_VARIABLE, "")
    if (Path(source) / UPSTREAM_DIRECTORY).is_dir():
        sys.path += [source] if source not in sys.path else []
        return None
    return f"set {SOURCE_VARIABLE} to a checkout of github.com/NVIDIA/Isaac-GR00T at {COMMIT}"


def prepare() -> None:
    """Gets ready to import upstream. Raises UpstreamMissing.

    albumentations asks the network for a newer version when it is imported, and transformers imports the Eagle model's
    code from a copy in a cache folder: neither may depend on the network or on what lies on the shared volume.
    """
    if (reason := missing()) is not None:
        raise UpstreamMissing(reason)
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    if "HF_MODULES_CACHE" not in os.environ and "transformers" not in sys.modules:
        os.environ["HF_MODULES_CACHE"] = tempfile.mkdtemp(prefix="vlalab-gr00t-modules-")
    logging.getLogger("transformers_modules").setLevel(logging.WARNING)  # the copy's own, which prints the tokenizer


class GivenNoise(TorchFunctionMode):
    """While it is entered, the one `torch.randn` of upstream's action head returns `noise`.

    Raises RuntimeError where another shape is asked for: then this is not the loop it is made for.
    """

    def __init__(self, noise: torch.Tensor):
        super().__init__()
        self._noise = noise
        self.taken = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is not torch.randn:
            return function(*args, **kwargs)
        size = tuple(kwargs.get("size", args[0] if args else ()))
        if size != tuple(self._noise.shape):
            raise RuntimeError(f"upstream draws noise of shape {size}; expected {tuple(self._noise.shape)}")
        self.taken += 1
        return self._noise.to(device=kwargs.get("device"), dtype=kwargs.get("dtype"))


def load_policy(
    directory: Path,
    embodiment: Embodiment,
    attention: AttentionKernel,
    device: str,
    denoising_steps: int,
    overrides: dict[str, Any] | None = None,
) -> Any:
    """Returns upstream's policy with the checkpoint in `folder` on `device`, in bfloat16.

    overrides: see `attention.backbone`. The language model's head is taken off: upstream computes every token's 151,680
    logits and uses none. The tokenizer is the checkpoint's, which for a published one is upstream's own. Raises
    UpstreamMissing, and upstream's own errors for weights that do not fit.
    """
    prepare()
    from torch.nn import Identity
    from transformers import Qwen2TokenizerFast

    from tests.gr00t.upstream.attention import backbone

    with contextlib.redirect_stdout(sys.stderr):  # upstream prints as it goes
        from gr00t.model.policy import Gr00tPolicy

        modalities, transforms = data_config(embodiment)
        with backbone(attention, overrides):
            policy = Gr00tPolicy(
                str(directory.resolve()),  # an absolute path is no repository's name, so nothing is looked up on a hub
                embodiment.tag,
                modalities,
                transforms,
                denoising_steps=denoising_steps,
                device=device,
            )
    policy.model.backbone.eagle_model.language_model.lm_head = Identity()
    if (directory / "vocab.json").is_file():
        tokenizer = Qwen2TokenizerFast.from_pretrained(str(directory), local_files_only=True, padding_side="left")
        processor = copy.copy(transforms.transforms[-1].eagle_processor)  # upstream has one for all transforms
        processor.tokenizer = tokenizer
        transforms.transforms[-1].eagle_processor = processor
    return policy


def data_config(embodiment: Embodiment) -> tuple[dict[str, Any], Any]:
    """Returns upstream's modality configuration and transforms for an embodiment, in its own classes."""
    from gr00t.data.dataset import ModalityConfig
    from gr00t.data.transform import base, concat, video
    from gr00t.model.transforms import GR00TTransform

    from services.gr00t.processing.images import CROP

    videos = [f"video.{name}" for name in embodiment.cameras.values()]
    state, action = ([f"{kind}.{name}" for name in getattr(embodiment, kind)] for kind in ("state", "action"))
    now, ahead = [0], list(range(HORIZON))
    keys = {"video": (now, videos), "state": (now, state), "action": (ahead, action)}
    keys |= {"language": (now, [embodiment.language])}
    modalities = {k: ModalityConfig(delta_indices=when, modality_keys=names) for k, (when, names) in keys.items()}
    jitter = {"brightness": 0.3, "contrast": 0.4, "saturation": 0.5, "hue": 0.08}  # in training only
    transforms = [
        video.VideoToTensor(apply_to=videos),
        video.VideoCrop(apply_to=videos, scale=CROP),
        video.VideoResize(apply_to=videos, height=224, width=224, interpolation="linear"),
        video.VideoColorJitter(apply_to=videos, **jitter),
        video.VideoToNumpy(apply_to=videos),
        *_numbers("state", embodiment.state),
        *_numbers("action", embodiment.action),
        concat.ConcatTransform(video_concat_order=videos, state_concat_order=state, action_concat_order=action),
        GR00TTransform(
            state_horizon=len(now), action_horizon=len(ahead), max_state_dim=STATE_DIM, max_action_dim=ACTION_DIM
        ),
    ]
    return modalities, base.ComposedModalityTransform(transforms=transforms)


def _numbers(kind: str, parts: Mapping[str, Transform]) -> list[Any]:
    """Returns upstream's transforms of a state or an action."""
    from gr00t.data.transform import state_action

    keys = {f"{kind}.{name}": part for name, part in parts.items()}
    turned = [key for key, part in keys.items() if part.normalization == "sin_cos"]
    modes = {k: p.normalization for k, p in keys.items() if p.normalization not in ("none", "sin_cos")}
    rotations = {key: part.rotation for key, part in keys.items() if part.rotation}
    made = [state_action.StateActionToTensor(apply_to=list(keys))]
    if turned:
        made.append(state_action.StateActionSinCosTransform(apply_to=turned))
    if modes or rotations:
        rest = [key for key in keys if key not in turned]
        made.append(
            state_action.StateActionTransform(apply_to=rest, normalization_modes=modes, target_rotations=rotations)
        )
    return made
