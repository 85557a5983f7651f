"""`--engine hf`: upstream's own model code through transformers, one observation at a time, for comparison.

That code comes with a checkpoint, or from the base model's repository at a pinned commit, and runs in this process:
hence off by default. The versions it asks for are the lock's.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

from services.openvla.checkpoint.config import ModelConfig, load_config
from services.openvla.checkpoint.published import BASE, REMOTE_CODE
from services.openvla.checkpoint.tokenizer import PROMPT, complete
from services.openvla.model.linear import quantiser
from services.openvla.model.openvla import weight_bytes
from services.openvla.service.info import CAMERA, example, policy_info, served_keys
from services.openvla.service.loading import placement
from services.openvla.service.settings import ModelSettings
from vla_contract import ActionChunk, Observation, Policy, PolicyInfo
from vla_modelkit.canary import check_sees
from vla_modelkit.checkpoint import CheckpointError
from vla_modelkit.devices import NAMES
from vla_modelkit.memory import require_memory

log = logging.getLogger("services.openvla")
_WAYS = {"sdpa": "sdpa", "flash": "flash_attention_2"}


class HfPolicy(Policy):
    """Upstream's `predict_action` behind the contract."""

    def __init__(self, model, processor, config: ModelConfig, info: PolicyInfo, device: torch.device):
        self._model, self._processor, self._config, self._info, self._device = model, processor, config, info, device

    def info(self) -> PolicyInfo:
        """Returns what is served, and how."""
        return self._info

    def act(self, observations: list[Observation]) -> list[ActionChunk]:
        """Returns a chunk of one action for each observation, one after the other."""
        return [self._one(one) for one in observations]

    @torch.inference_mode()
    def _one(self, observation: Observation) -> ActionChunk:
        start = time.perf_counter()
        inputs = self.inputs(observation.images[CAMERA], observation.instruction)
        middle = time.perf_counter()
        key = observation.unnorm_key or self._info.unnorm_keys[0]
        action = self._model.predict_action(**inputs, unnorm_key=key, do_sample=False)
        timings = {"prepare": (middle - start) * 1e3, "model": (time.perf_counter() - middle) * 1e3}
        return ActionChunk(np.asarray(action, np.float32)[None], timings)

    def inputs(self, picture: np.ndarray, instruction: str) -> dict[str, torch.Tensor]:
        """Returns what upstream's processor makes, with the space token behind the prompt and the mask as long."""
        from PIL import Image

        made = self._processor(PROMPT.format(instruction=instruction.lower()), Image.fromarray(picture))
        ids = torch.tensor([complete(made["input_ids"][0].tolist())], device=self._device)
        pixels = made["pixel_values"].to(self._device, self._model.dtype)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}


def load_hf_policy(settings: ModelSettings, folder: Path) -> HfPolicy:
    """Returns the policy. Raises CheckpointError, ValueError or MemoryError saying what is wrong and what to do."""
    config = load_config(folder)
    keys = served_keys(config, settings.unnorm_key)
    device, dtype, how, reason = placement(settings)
    quantiser(settings.quant)  # raises where bitsandbytes cannot be imported
    if settings.quant != "none" and device.type != "cuda":
        raise ValueError(
            f"engine hf with {settings.quant} needs a GPU; VLALAB_OPENVLA_ENGINE=vla-lab quantises on a CPU too"
        )
    otherwise = "set VLALAB_OPENVLA_QUANT=nf4, or take a smaller checkpoint"
    require_memory(weight_bytes(config, dtype, settings.quant), device, otherwise)
    processor, model = load_upstream(folder, dtype, device, _WAYS[how.name], settings.quant)
    model.norm_stats = {key: {"action": {n: list(v) for n, v in s.items()}} for key, s in config.norm_stats.items()}
    quantization = settings.quant if settings.quant != "none" else NAMES[dtype]
    details = {
        "engine": "hf", "dtype": NAMES[dtype], "attention": how.name, "attention_reason": reason,
        "weights_mb": f"{model.get_memory_footprint() / 1e6:.0f}",
    }  # fmt: skip
    info = policy_info(config, folder, keys, device, quantization, 1, details)
    policy = HfPolicy(model, processor, config, info, device)
    check_sees(policy, partial(example, info))
    return policy


def load_upstream(folder: Path, dtype: torch.dtype, device: torch.device, way: str = "sdpa", quant: str = "none"):
    """Returns upstream's (processor, model) of a checkpoint."""
    classes = remote_classes(folder)
    return _processor(folder, classes), _model(folder, classes, dtype, device, way, quant)


def remote_classes(folder: Path) -> dict[str, type]:
    """Returns upstream's classes by name, loaded from the checkpoint or from the base model's pinned commit."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    local = all((folder / name).is_file() for name in REMOTE_CODE)
    place, revision = (str(folder), None) if local else BASE
    log.warning("running remote code of %s%s", place, "" if local else f" at {revision}")
    names = (
        "configuration_prismatic.OpenVLAConfig", "modeling_prismatic.OpenVLAForActionPrediction",
        "processing_prismatic.PrismaticImageProcessor", "processing_prismatic.PrismaticProcessor",
    )  # fmt: skip
    try:
        found = [
            get_class_from_dynamic_module(name, place, code_revision=revision, revision=revision) for name in names
        ]
    except (OSError, ImportError) as error:
        raise CheckpointError(
            f"upstream's model code cannot be had from {place}: {' '.join(str(error).split())[:300]}; put "
            f"{', '.join(REMOTE_CODE)} beside the weights, or set VLALAB_OPENVLA_ENGINE=vla-lab"
        ) from error
    return dict(zip(("config", "model", "pictures", "processor"), found, strict=True))


def _processor(folder: Path, classes: dict[str, type]):
    from transformers import LlamaTokenizerFast

    tokenizer = LlamaTokenizerFast.from_pretrained(str(folder))
    return classes["processor"](classes["pictures"].from_pretrained(str(folder)), tokenizer)


def _model(folder: Path, classes: dict[str, type], dtype: torch.dtype, device: torch.device, way: str, quant: str):
    given = {"torch_dtype": dtype, "low_cpu_mem_usage": True, "attn_implementation": way}
    if quant != "none":
        from transformers import BitsAndBytesConfig

        given["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=quant in ("nf4", "fp4"), load_in_8bit=quant == "int8",
            bnb_4bit_quant_type=quant if quant != "int8" else "nf4", bnb_4bit_use_double_quant=quant == "nf4",
            bnb_4bit_compute_dtype=dtype,
        )  # fmt: skip
        given["device_map"] = {"": device}
    config = classes["config"].from_pretrained(str(folder))
    model = classes["model"].from_pretrained(str(folder), config=config, **given)
    return model.eval() if quant != "none" else model.eval().to(device)  # a quantised model must never be moved
