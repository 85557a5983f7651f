"""How upstream's Eagle backbone starts where flash-attn cannot.

Upstream's backbone asks for flash-attn in two ways. Its RADIO tower, which N1.5 does not use, imports flash_attn when
it is imported, and asks for the GPU's generation; and the SigLIP tower is built with flash_attention_2 whatever the
configuration says. Both are met at upstream's own seams, nothing of it is changed on disk: a module with the two RADIO
names is there while the backbone is imported, and the tower is handed over ready-made (its class takes
`vision_model`). With flash-attn and a GPU, none of this happens.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.gr00t.model.attention import AttentionKernel


@contextlib.contextmanager
def backbone(attention: AttentionKernel, overrides: Mapping[str, Any] | None = None) -> Iterator[None]:
    """While the block runs, upstream's Eagle backbone is built with this attention.

    overrides: of upstream's Eagle configuration, {"text_config": {…}, "vision_config": {…}}, for small test models.
    """
    if attention.kind == "flash" and overrides is None:
        yield
        return
    from gr00t.model.backbone import eagle_backbone

    directory = Path(eagle_backbone.DEFAULT_EAGLE_PATH)
    makers = {"AutoConfig": _Configs(overrides or {}), "AutoModel": _Models(attention.kind)}
    with contextlib.ExitStack() as stack:
        if attention.kind != "flash":
            stack.enter_context(_without_radio(directory))
        stack.enter_context(_swapped(eagle_backbone, makers))
        yield


@dataclass(frozen=True)
class _Configs:
    """In the place of AutoConfig in upstream's backbone: its own Eagle configuration, with the changes applied."""

    overrides: Mapping[str, Any]

    def from_pretrained(self, path: str, trust_remote_code: bool):
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        for part, changes in self.overrides.items():
            getattr(config, part).update(dict(changes))
        return config


@dataclass(frozen=True)
class _Models:
    """In the place of AutoModel in upstream's backbone: builds its Eagle model with one kind of attention."""

    kind: str

    def from_config(self, config, trust_remote_code: bool):
        from transformers import AutoModel, SiglipVisionModel
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        if self.kind == "flash":
            return AutoModel.from_config(config, trust_remote_code=trust_remote_code)
        model_class = get_class_from_dynamic_module(config.auto_map["AutoModel"], config.name_or_path)
        tower = SiglipVisionModel._from_config(
            config.vision_config, attn_implementation=self.kind, torch_dtype=config.torch_dtype
        )
        return model_class._from_config(config, attn_implementation=self.kind, vision_model=tower)


@contextlib.contextmanager
def _without_radio(directory: Path) -> Iterator[None]:
    """Has the backbone's `radio_model` be a module with its two names, which stand for nothing that N1.5 builds."""
    from transformers.dynamic_module_utils import TRANSFORMERS_DYNAMIC_MODULE_NAME as DYNAMIC

    name = f"{DYNAMIC}.{directory.name}.radio_model"
    module = types.ModuleType(name, "The RADIO vision tower, which GR00T N1.5 does not use.")
    for absent in ("RADIOConfig", "RADIOModel"):
        setattr(module, absent, _absent(absent))
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        yield
    finally:
        sys.modules.pop(name)
        if before is not None:
            sys.modules[name] = before


def _absent(name: str) -> type:
    def __init__(self, *args, **kwargs):
        raise RuntimeError(f"{name} is the RADIO vision tower; this checkpoint asks for it, GR00T N1.5 has SigLIP")

    return type(name, (), {"__init__": __init__})


@contextlib.contextmanager
def _swapped(module: types.ModuleType, names: Mapping[str, Any]) -> Iterator[None]:
    """Gives names of a module other values while the block runs."""
    before = {name: getattr(module, name) for name in names}
    try:
        for name, value in names.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)
