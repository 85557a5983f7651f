"""Isaac-GR00T's package: whether it is there, how it is imported, and what is asked of it to load a policy.

The package is no part of this repository and of no package index: the image takes it by commit.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.gr00t.attention import Attention, backbone
from services.gr00t.embodiments import Embodiment
from services.gr00t.source import COMMIT, NAME_VARIABLE, changed

if TYPE_CHECKING:
    from gr00t.model.policy import Gr00tPolicy

SOURCE_VARIABLE = "VLALAB_GR00T_SOURCE"
_copies: list[str] = []  # folders to remove at the end


class UpstreamMissing(ValueError):
    """Isaac-GR00T's package cannot be imported here; the text says how to get it."""


def missing() -> str | None:
    """Returns why upstream's package cannot be used and how to get it, or None where it can."""
    _add_source()
    if importlib.util.find_spec("gr00t") is None:
        return (
            "Isaac-GR00T's package 'gr00t' is not in this environment. It is on no package index: build the image with "
            "its source (the build fetches it by commit, or takes a folder as the build context gr00t-source), or set "
            f"{SOURCE_VARIABLE} to a checkout of github.com/NVIDIA/Isaac-GR00T at {COMMIT}"
        )
    if importlib.util.find_spec("gr00t.model") is None or not _eagle_folder().is_dir():
        where = importlib.util.find_spec("gr00t").submodule_search_locations
        return (
            f"'gr00t' in {', '.join(where or ['?'])} has no model/backbone/eagle2_hg_model: it is another package, or "
            f"was installed without its data files; use the source folder of Isaac-GR00T at {COMMIT}"
        )
    return None if os.environ.get(NAME_VARIABLE) else changed(_package())  # an image's build has checked, and names it


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
        _copies.append(os.environ["HF_MODULES_CACHE"])
        atexit.register(remove_copies)
    logging.getLogger("transformers_modules").setLevel(logging.WARNING)  # the copy's own, which prints the tokenizer


def remove_copies() -> None:
    """Removes the copy of the Eagle model's code that this process made; it is not needed once a policy is loaded."""
    while _copies:
        shutil.rmtree(_copies.pop(), ignore_errors=True)


def load_policy(
    folder: Path, embodiment: Embodiment, attention: Attention, device: str, overrides: dict[str, Any] | None = None
) -> Gr00tPolicy:
    """Returns upstream's policy with the checkpoint in `folder` on `device`, in bfloat16.

    overrides: see `attention.backbone`. The language model's head is taken off: upstream computes every token's 151,680
    logits and uses none. Raises UpstreamMissing, and upstream's own errors for weights that do not fit.
    """
    prepare()
    from torch.nn import Identity

    with contextlib.redirect_stdout(sys.stderr):  # upstream prints as it goes
        from gr00t.model.policy import Gr00tPolicy

        modalities, transforms = data_config(embodiment)
        with backbone(attention, overrides):
            policy = Gr00tPolicy(
                str(folder.resolve()),  # an absolute path is no repository's name, so nothing is looked up on a hub
                embodiment.tag,
                modalities,
                transforms,
                denoising_steps=embodiment.denoising_steps,
                device=device,
            )
    policy.model.backbone.eagle_model.language_model.lm_head = Identity()
    return policy


def data_config(embodiment: Embodiment) -> tuple[dict[str, Any], Any]:
    """Returns upstream's modality configuration and transforms with the embodiment's own names in them."""
    from gr00t.data.transform.state_action import StateActionTransform
    from gr00t.experiment.data_config import DATA_CONFIG_MAP

    config = type(DATA_CONFIG_MAP[embodiment.config])()
    config.video_keys = [f"video.{name}" for name in embodiment.cameras.values()]
    config.state_keys = [f"state.{name}" for name in embodiment.state]
    config.action_keys = [f"action.{name}" for name in embodiment.action]
    config.language_keys = [embodiment.language]
    transforms = config.transform()
    for transform in transforms.transforms:
        if isinstance(transform, StateActionTransform) and transform.apply_to == config.action_keys:
            transform.normalization_modes |= {f"action.{name}": "mean_std" for name in embodiment.mean_std}
    return config.modality_config(), transforms


def version() -> str:
    """Returns the imported package's commit, for `/v1/info`: as it was named, else the pinned one that it equals."""
    return os.environ.get(NAME_VARIABLE) or COMMIT


def _add_source() -> None:
    source = os.environ.get(SOURCE_VARIABLE)
    if source and source not in sys.path:
        sys.path.append(source)


def _package() -> Path:
    return Path((importlib.util.find_spec("gr00t").submodule_search_locations or ["."])[0])


def _eagle_folder() -> Path:
    return _package() / "model" / "backbone" / "eagle2_hg_model"
