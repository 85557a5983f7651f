r"""Makes tests/openvla/data/reference-*.npz with upstream's own, unmodified code on the tiny checkpoints.

Upstream's code is no part of this repository. With a checkout of openvla/openvla at c8f03f48, in this environment
(transformers 4.40.1, timm 0.9.10, torch 2.2.0 on a CPU, fp32):

    PYTHONPATH=.:shared/common:shared/contract:shared/modelkit \
        python tests/openvla/make_reference.py CHECKOUT/prismatic/extern/hf
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from services.openvla.checkpoint import tiny
from tests.openvla.cases import COLUMNS, INSTRUCTIONS, pictures

DATA = Path(__file__).parent / "data"
KEY = "libero_goal_no_noops"
PROMPT = "In: What action should the robot take to {}?\nOut:"  # vla-scripts/deploy.py


def main() -> None:
    """Writes one file per size."""
    code = Path(sys.argv[1])
    for size in ("tiny", "siglip"):
        with tempfile.TemporaryDirectory() as directory:
            os.environ["HF_MODULES_CACHE"] = f"{directory}/modules"
            tiny.write(Path(directory) / "checkpoint", tiny.SPECS[size], code)
            np.savez_compressed(DATA / f"reference-{size}.npz", **reference(f"{directory}/checkpoint"))


@torch.inference_mode()
def reference(directory: str) -> dict[str, np.ndarray]:
    """Returns what upstream's processor and model make of every case."""
    from transformers import AutoModelForVision2Seq, AutoProcessor

    processor = AutoProcessor.from_pretrained(directory, trust_remote_code=True)
    model = AutoModelForVision2Seq.from_pretrained(directory, trust_remote_code=True, torch_dtype=torch.float32).eval()
    ids, tokens, scores, actions, pixels = [], [], [], [], []
    for image, instruction in zip(pictures(), INSTRUCTIONS, strict=True):
        inputs = processor(PROMPT.format(instruction.lower()), Image.fromarray(image).convert("RGB"))
        actions.append(model.predict_action(**inputs, unnorm_key=KEY, do_sample=False))
        prompt = torch.cat((inputs["input_ids"], torch.tensor([[29871]])), dim=1)  # as predict_action does
        out = model.generate(
            prompt, pixel_values=inputs["pixel_values"], attention_mask=torch.ones_like(prompt), max_new_tokens=7,
            do_sample=False, return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
        ids.append(np.pad(prompt[0].numpy(), (0, 160 - prompt.shape[1])))
        tokens.append(out.sequences[0, -7:].numpy())
        scores.append(torch.cat(out.logits)[:, COLUMNS].numpy())
        pixels.append(inputs["pixel_values"][0].numpy())
    names = ("ids", "tokens", "scores", "actions", "pixels")
    values = map(np.stack, (ids, tokens, scores, actions, [pixels[2], pixels[7]]))
    return dict(zip(names, values, strict=True))


if __name__ == "__main__":
    main()
