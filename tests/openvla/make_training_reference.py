r"""Makes tests/openvla/data/reference-training.npz with upstream's own, unmodified training code on tiny checkpoints.

Upstream's code is no part of this repository. In an environment of openvla-oft at 213c5ff8 (its pyproject.toml, with
transformers 4.40.1 and dlimp_openvla), fp32 on a CPU, in this order:

    export LAB=.:shared/common:shared/contract:shared/modelkit
    PYTHONPATH=OPENVLA:$LAB python tests/openvla/make_training_reference.py tokens
    PYTHONPATH=FORK/src:OFT:$LAB python tests/openvla/make_training_reference.py l1

OPENVLA is a checkout of openvla at c8f03f48, OFT of openvla-oft, FORK of its transformers at bc339d9a.
"""

import inspect
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import dlimp  # noqa: F401
import numpy as np
import tensorflow as tf
import torch
from PIL import Image
from prismatic.extern.hf.configuration_prismatic import OpenVLAConfig
from prismatic.extern.hf.modeling_prismatic import OpenVLAForActionPrediction
from prismatic.extern.hf.processing_prismatic import PrismaticImageProcessor
from prismatic.models.backbones.llm.prompting import PurePromptBuilder
from prismatic.util.data_utils import PaddedCollatorForActionPrediction
from prismatic.vla.action_tokenizer import ActionTokenizer
from prismatic.vla.datasets import RLDSBatchTransform
from transformers import LlamaTokenizerFast
from transformers.models.llama import modeling_llama

from services.openvla.checkpoint import tiny
from services.openvla.checkpoint.oft import Oft
from tests.openvla.cases import INSTRUCTIONS, pictures, wrist_pictures

FILE = Path(__file__).parent / "data" / "reference-training.npz"
COUNT, SIZE = 4, 64
# top, left, brightness, contrast, saturation, hue of `Augmentation`
CHANGES = ((0.5, 0.5, 0, 1, 1, 0), (0.1, 0.8, 0.15, 0.85, 1.15, 0.04), (1.0, 0.0, -0.2, 1.2, 0.8, -0.05))


def main() -> None:
    """Writes one of the two heads' part of the file."""
    is_fork = "is_causal=False" in inspect.getsource(modeling_llama.LlamaSdpaAttention.forward)
    head = sys.argv[1]
    if is_fork != (head == "l1"):
        sys.exit(f"{modeling_llama.__file__}: l1 needs openvla-oft's fork of transformers, tokens the stock package")
    with tempfile.TemporaryDirectory() as directory:
        spec = replace(tiny.SPECS["tiny"], oft=Oft() if head == "l1" else None)
        base = tiny.write(Path(directory) / "base", spec)
        arrays = {f"{head}:{name}": value for name, value in reference(base, head).items()}
    before = dict(np.load(FILE)) if FILE.exists() else {}
    np.savez_compressed(FILE, **{**before, **arrays, **augmentation()})


def reference(base: Path, head: str) -> dict[str, np.ndarray]:
    """Returns a batch as upstream's loader makes it, and upstream's loss of it."""
    tokenizer, images = LlamaTokenizerFast.from_pretrained(base), PrismaticImageProcessor.from_pretrained(base)
    model = OpenVLAForActionPrediction.from_pretrained(
        base, config=OpenVLAConfig.from_pretrained(base), torch_dtype=torch.float32
    ).eval()
    is_l1 = head == "l1"
    further = {"use_wrist_image": True, "use_proprio": True} if is_l1 else {}
    transform = RLDSBatchTransform(
        ActionTokenizer(tokenizer), tokenizer, images.apply_transform, PurePromptBuilder, **further
    )
    random = np.random.default_rng(0)
    seen = [[small(one), small(other)] for one, other in zip(pictures(), wrist_pictures(), strict=True)][:COUNT]
    states = random.uniform(-1, 1, (COUNT, 8)).astype(np.float32)
    actions = random.uniform(-1, 1, (COUNT, 8 if is_l1 else 1, 7)).astype(np.float32)
    rows = []
    for (image, wrist), state, action, text in zip(seen, states, actions, INSTRUCTIONS, strict=False):
        observation = {"image_primary": image[None], "image_wrist": wrist[None], "proprio": state[None]}
        task = {"language_instruction": text.encode()}
        row = {"dataset_name": b"toy", "action": action, "observation": observation, "task": task}
        rows.append(transform(row))
        # upstream goes through text and counts characters; an action token is one in Llama's tokenizer, several in ours
        prompt = PurePromptBuilder("openvla").add_turn("human", f"What action should the robot take to {text.lower()}?")
        ids = tokenizer(f"{prompt.rstrip()} ", add_special_tokens=True).input_ids
        tokens = tokenizer.vocab_size - np.digitize(np.clip(action, -1, 1), np.linspace(-1, 1, 256)).ravel()
        rows[-1]["input_ids"] = torch.tensor([*ids, *tokens.tolist(), 2])
        rows[-1]["labels"] = torch.tensor([*[-100] * len(ids), *tokens.tolist(), 2])
    lengths = [len(row["input_ids"]) - (57 if is_l1 else 8) for row in rows]
    collator = PaddedCollatorForActionPrediction(tokenizer.model_max_length, tokenizer.pad_token_id, "right")
    batch = collator(rows)
    with torch.no_grad():
        loss = l1_loss(model, base, batch) if is_l1 else model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], pixel_values=batch["pixel_values"],
            labels=batch["labels"],
        ).loss  # fmt: skip
    return {
        "images": np.array(seen if is_l1 else [[image] for image, _ in seen]), "ids": batch["input_ids"].numpy(),
        "lengths": np.array(lengths), "states": states if is_l1 else np.zeros((COUNT, 0), np.float32),
        "actions": actions, "loss": loss.numpy(),
    }  # fmt: skip


def l1_loss(model, base: Path, batch: dict) -> torch.Tensor:
    """Returns the loss of run_forward_pass (vla-scripts/finetune.py), in fp32."""
    from experiments.robot.openvla_utils import load_component_state_dict
    from prismatic.models.action_heads import L1RegressionActionHead
    from prismatic.models.projectors import ProprioProjector
    from prismatic.training.train_utils import get_current_action_mask, get_next_actions_mask

    model.vision_backbone.set_num_images_in_input(2)
    width = model.llm_dim
    head, proprio = L1RegressionActionHead(width, width).eval(), ProprioProjector(width, 8).eval()
    for part, name in ((head, "action_head"), (proprio, "proprio_projector")):
        part.load_state_dict(load_component_state_dict(str(next(base.glob(f"{name}--*")))))
        part.float()
    output = model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], pixel_values=batch["pixel_values"],
        labels=batch["labels"], output_hidden_states=True, proprio=batch["proprio"], proprio_projector=proprio,
    )  # fmt: skip
    patches = model.vision_backbone.get_num_patches() * 2 + 1
    labels = batch["labels"][:, 1:]
    mask = get_current_action_mask(labels) | get_next_actions_mask(labels)
    hidden = output.hidden_states[-1][:, patches:-1][mask].reshape(len(labels), 56, -1)
    return torch.nn.L1Loss()(batch["actions"].float(), head.predict_action(hidden))


def augmentation() -> dict[str, np.ndarray]:
    """Returns images, and what TensorFlow makes of them with fixed changes, as dlimp's augment_image does."""
    images, results = [small(picture) for picture in pictures()[: len(CHANGES)]], []
    for image, (top, left, brightness, contrast, saturation, hue) in zip(images, CHANGES, strict=True):
        pixels = tf.image.convert_image_dtype(image, tf.float32)
        side = np.sqrt(np.float32(0.9))
        start = (1 - side) * np.float32([top, left])
        box = np.concatenate((start, start + side))[None]
        pixels = tf.clip_by_value(tf.image.crop_and_resize(pixels[None], box, [0], (SIZE, SIZE))[0], 0, 1)
        pixels = tf.clip_by_value(tf.image.adjust_brightness(pixels, brightness), 0, 1)
        pixels = tf.clip_by_value(tf.image.adjust_contrast(pixels, contrast), 0, 1)
        pixels = tf.clip_by_value(tf.image.adjust_saturation(pixels, saturation), 0, 1)
        pixels = tf.clip_by_value(tf.image.adjust_hue(pixels, hue), 0, 1)
        results.append(tf.image.convert_image_dtype(pixels, tf.uint8, saturate=True).numpy())
    return {"augmentation:images": np.stack(images), "augmentation:results": np.stack(results)}


def small(picture: np.ndarray) -> np.ndarray:
    """Returns uint8 [SIZE, SIZE, 3]."""
    return np.asarray(Image.fromarray(picture).convert("RGB").resize((SIZE, SIZE)))


if __name__ == "__main__":
    main()
