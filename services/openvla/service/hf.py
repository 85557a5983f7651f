"""`--engine hf`: upstream's code of a checkpoint, run by transformers, one observation at a time, for comparison."""

from __future__ import annotations

import logging
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import LlamaTokenizerFast
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from services.openvla.checkpoint.config import load_config
from services.openvla.checkpoint.published import BASE, REMOTE_CODE
from services.openvla.checkpoint.tokenizer import PROMPT, complete
from services.openvla.model.openvla import weight_bytes
from services.openvla.service.loading import CAMERA, example, placement, policy_info, served_keys
from services.openvla.service.settings import ModelSettings
from vla_contract import ActionChunk, Observation, Policy, PolicyInfo
from vla_modelkit.canary import check_sees
from vla_modelkit.checkpoint import CheckpointError
from vla_modelkit.devices import NAMES
from vla_modelkit.memory import require_memory

log = logging.getLogger("services.openvla")
CLASSES = [
    "configuration_prismatic.OpenVLAConfig", "modeling_prismatic.OpenVLAForActionPrediction",
    "processing_prismatic.PrismaticImageProcessor", "processing_prismatic.PrismaticProcessor",
]  # fmt: skip


class HfPolicy(Policy):
    """Upstream's `predict_action` behind the contract."""

    def __init__(self, model, processor, info: PolicyInfo):
        self._model, self._processor, self._info = model, processor, info

    def info(self) -> PolicyInfo:
        return self._info

    def act(self, observations: list[Observation]) -> list[ActionChunk]:
        return [self._predict(observation) for observation in observations]

    @torch.inference_mode()
    def _predict(self, observation: Observation) -> ActionChunk:
        start = time.perf_counter()
        prompt = PROMPT.format(instruction=observation.instruction.lower())
        inputs = self._processor(prompt, Image.fromarray(observation.images[CAMERA]))
        ids = torch.tensor([complete(inputs["input_ids"][0].tolist())], device=self._model.device)
        pixels = inputs["pixel_values"].to(self._model.device, self._model.dtype)
        prepared = time.perf_counter()
        key, mask = observation.unnorm_key or self._info.unnorm_keys[0], torch.ones_like(ids)
        inputs = {"input_ids": ids, "attention_mask": mask, "pixel_values": pixels, "unnorm_key": key}
        action = self._model.predict_action(**inputs, do_sample=False)
        timings = {"prepare": (prepared - start) * 1e3, "model": (time.perf_counter() - prepared) * 1e3}
        return ActionChunk(np.asarray(action, np.float32)[None], timings)


def load_hf_policy(settings: ModelSettings, directory: Path) -> HfPolicy:
    """Load the policy. Raises CheckpointError, ValueError or MemoryError with the error and its fix."""
    config = load_config(directory)
    if settings.quant != "none" or config.oft:
        raise ValueError(
            "engine hf runs OpenVLA, not OpenVLA-OFT, whose code needs its own fork of transformers, and does not "
            "quantise; set VLALAB_OPENVLA_ENGINE=vla-lab"
        )
    keys = served_keys(config, settings.unnorm_key)
    device, dtype, attention, reason = placement(settings)
    require_memory(weight_bytes(config, dtype, "none"), device, "use VLALAB_OPENVLA_ENGINE=vla-lab, which quantises")
    processor, model = load_upstream(directory, dtype, device, attention.__name__)
    model.norm_stats = {key: {"action": {n: list(v) for n, v in s.items()}} for key, s in config.norm_stats.items()}
    details = {"engine": "hf", "dtype": NAMES[dtype], "attention": attention.__name__, "attention_reason": reason}
    details["weights_mb"] = f"{model.get_memory_footprint() / 1e6:.0f}"
    policy = HfPolicy(model, processor, policy_info(config, directory, keys, device, NAMES[dtype], 1, details))
    check_sees(policy, partial(example, policy.info()))
    return policy


def load_upstream(directory: Path, dtype: torch.dtype, device: torch.device, attention: str = "sdpa"):
    """Return upstream's (processor, model) of a checkpoint. Raises CheckpointError if its code is missing."""
    source, revision = (str(directory), None) if all((directory / name).is_file() for name in REMOTE_CODE) else BASE
    log.warning("running remote code of %s at %s", source, revision or "its version there")
    try:
        config_class, model_class, images_class, processor_class = (
            get_class_from_dynamic_module(name, source, code_revision=revision, revision=revision) for name in CLASSES
        )
    except (OSError, ImportError) as error:
        raise CheckpointError(
            f"upstream's model code cannot be loaded from {source}: {' '.join(str(error).split())[:300]}; put "
            f"{', '.join(REMOTE_CODE)} next to the weights, or set VLALAB_OPENVLA_ENGINE=vla-lab"
        ) from error
    processor = processor_class(images_class.from_pretrained(directory), LlamaTokenizerFast.from_pretrained(directory))
    model = model_class.from_pretrained(
        directory, config=config_class.from_pretrained(directory), torch_dtype=dtype, low_cpu_mem_usage=True,
        attn_implementation="flash_attention_2" if attention == "flash" else attention,
    )  # fmt: skip
    return processor, model.eval().to(device)
