r"""Makes tests/openvla/data/reference-oft.npz with upstream's own, unmodified code on tiny OpenVLA-OFT checkpoints.

Upstream's code is no part of this repository, and no environment of the lab can run it: it needs its own fork of
transformers. With the stock package it runs too and gives other actions, so this script checks that it is the fork.
In an environment of Python 3.10 with openvla-oft at 213c5ff8 (its pyproject.toml; torch 2.2.0, timm 0.9.10), the fork
at bc339d9a, fp32 on a CPU:

    PYTHONPATH=CHECKOUT:.:shared/common:shared/contract:shared/modelkit python tests/openvla/make_oft_reference.py
"""

import inspect
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from experiments.robot.openvla_utils import load_component_state_dict, normalize_proprio
from PIL import Image
from prismatic.extern.hf.configuration_prismatic import OpenVLAConfig
from prismatic.extern.hf.modeling_prismatic import OpenVLAForActionPrediction
from prismatic.extern.hf.processing_prismatic import PrismaticImageProcessor, PrismaticProcessor
from prismatic.models.action_heads import L1RegressionActionHead
from prismatic.models.projectors import ProprioProjector
from transformers import LlamaTokenizerFast
from transformers.models.llama import modeling_llama

from services.openvla.checkpoint import tiny
from services.openvla.checkpoint.oft import Oft
from tests.openvla.cases import INSTRUCTIONS, pictures, states, wrist_pictures

DATA = Path(__file__).parent / "data"
KEY = "libero_goal_no_noops"
PROMPT = "In: What action should the robot take to {}?\nOut:"  # get_vla_action of openvla_utils.py
STORED = (2, 7)  # cases whose features and pixels are stored


def main() -> None:
    """Writes the file."""
    attention = inspect.getsource(modeling_llama.LlamaSdpaAttention.forward)
    if "is_causal=False" not in attention:
        sys.exit(f"{modeling_llama.__file__} is not of openvla-oft's fork of transformers: its attention is causal")
    spec = tiny.SPECS["tiny"]
    with tempfile.TemporaryDirectory() as directory:
        l1 = tiny.write(Path(directory) / "l1", replace(spec, oft=Oft()))
        tokens = tiny.write(Path(directory) / "tokens", replace(spec, oft=Oft(False, False)))
        np.savez_compressed(DATA / "reference-oft.npz", **l1_reference(l1), tokens_actions=tokens_reference(tokens))


def load(directory: Path, images: int):
    """Returns upstream's (processor, model), loaded as its get_vla does, but in fp32."""
    processor = PrismaticProcessor(
        PrismaticImageProcessor.from_pretrained(directory), LlamaTokenizerFast.from_pretrained(directory)
    )
    model = OpenVLAForActionPrediction.from_pretrained(
        directory, config=OpenVLAConfig.from_pretrained(directory), torch_dtype=torch.float32
    ).eval()
    model.vision_backbone.set_num_images_in_input(images)
    model.norm_stats = json.loads((directory / "dataset_statistics.json").read_text())
    return processor, model


@torch.inference_mode()
def l1_reference(directory: Path) -> dict[str, np.ndarray]:
    """Returns what upstream makes of every case with two images, the state and the L1 head."""
    processor, model = load(directory, 2)
    hidden = model.llm_dim
    head, proprio = L1RegressionActionHead(hidden, hidden).eval(), ProprioProjector(hidden, 8).eval()
    for part, name in ((head, "action_head"), (proprio, "proprio_projector")):
        part.load_state_dict(load_component_state_dict(str(next(directory.glob(f"{name}--*")))))
        part.float()
    actions, hiddens, features, pixels = [], [], [], []
    for image, wrist, state, text in zip(pictures(), wrist_pictures(), states(), INSTRUCTIONS, strict=True):
        prompt = PROMPT.format(text.lower())
        inputs, other = (processor(prompt, Image.fromarray(one).convert("RGB")) for one in (image, wrist))
        inputs["pixel_values"] = torch.cat((inputs["pixel_values"], other["pixel_values"]), dim=1)
        normal = normalize_proprio(state, model.norm_stats[KEY]["proprio"])
        action, states_of_actions = model.predict_action(
            **inputs, unnorm_key=KEY, do_sample=False, proprio=normal, proprio_projector=proprio, action_head=head
        )
        seen = model._process_vision_features(inputs["pixel_values"])
        seen = model._process_proprio_features(seen, torch.Tensor(normal), proprio)
        actions.append(action)
        hiddens.append(states_of_actions[0, ::5].numpy())
        features.append(seen[0].numpy())
        pixels.append(inputs["pixel_values"][0].numpy())
    few = {"features": features, "pixels": pixels}
    stored = {name: np.stack([values[index] for index in STORED]) for name, values in few.items()}
    return {"actions": np.stack(actions), "hidden": np.stack(hiddens), **stored}


@torch.inference_mode()
def tokens_reference(directory: Path) -> np.ndarray:
    """Returns the actions [8, 8, 7] of one image, decoded in parallel from action tokens."""
    processor, model = load(directory, 1)
    actions = []
    for image, text in zip(pictures(), INSTRUCTIONS, strict=True):
        inputs = processor(PROMPT.format(text.lower()), Image.fromarray(image).convert("RGB"))
        actions.append(model.predict_action(**inputs, unnorm_key=KEY, do_sample=False)[0])
    return np.stack(actions)


if __name__ == "__main__":
    main()
