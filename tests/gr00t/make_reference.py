"""Makes tests/gr00t/data/*.npz with upstream's own, unmodified code on small random checkpoints.

Upstream's code is no part of this repository. With a checkout of Isaac-GR00T at 4af2b622, in a copy of this
environment with upstream/requirements.in installed (transformers 4.51.3, diffusers 0.30.2, pytorch3d 0.7.6,
torch 2.5.1 on a CPU, fp32):

    VLALAB_GR00T_SOURCE=CHECKOUT PYTHONPATH=.:shared/common:shared/contract:shared/modelkit \
        python tests/gr00t/make_reference.py

flash-attn is not needed: its places in upstream's backbone are filled as upstream/attention.py says.
"""

import itertools
import os
import tempfile
from pathlib import Path

import numpy as np
import torch

from services.gr00t.checkpoint import tiny
from services.gr00t.checkpoint.directory import find
from services.gr00t.checkpoint.embodiment import ROTATIONS
from services.gr00t.model.attention import AttentionKernel
from services.gr00t.processing import rotations
from services.gr00t.service.layout import layout
from services.gr00t.service.settings import Settings
from tests.gr00t import cases
from tests.gr00t.upstream import package
from tests.gr00t.upstream.package import GivenNoise
from tests.gr00t.upstream.policy import UpstreamPolicy, to_actions
from vla_contract import Observation

DATA = Path(__file__).parent / "data"


def main() -> None:
    """Writes pytorch3d's rotations, one file per embodiment, and one of token ids by the published tokenizer."""
    np.savez_compressed(DATA / "rotations-pytorch3d.npz", **pytorch3d_rotations())
    package.prepare()
    with tempfile.TemporaryDirectory() as directory:
        for name in cases.EMBODIMENTS:
            made = tiny.make(Path(directory) / name, name, side=cases.SIDE)
            np.savez_compressed(DATA / f"reference-{name}.npz", **reference(made))
        np.savez_compressed(DATA / "tokens-published.npz", **published_tokens(Path(directory) / "libero"))


def pytorch3d_rotations() -> dict[str, np.ndarray]:
    """Returns what pytorch3d makes of the same rotations in every other representation, as upstream calls it."""
    from pytorch3d import transforms

    def convert(kind: str, name: str, values: torch.Tensor) -> torch.Tensor:
        if not kind.startswith("euler"):
            return getattr(transforms, name.format(kind))(values)
        axes = kind[-3:].translate(str.maketrans("rpy", "XYZ"))
        return getattr(transforms, name.format("euler_angles"))(values, convention=axes)

    found = {}
    for source, target in itertools.permutations(ROTATIONS, 2):
        values = torch.from_numpy(cases.rotation(source, rotations.size(source)))
        matrix = convert(source, "{}_to_matrix", values)
        found[f"{source} {target}"] = convert(target, "matrix_to_{}", matrix).numpy()
    return found


@torch.inference_mode()
def reference(directory: Path) -> dict[str, np.ndarray]:
    """Returns what upstream's transforms and model make of every case."""
    policy, sizes = load(directory)
    rows = [case(policy, sizes, index) for index in range(len(cases.INSTRUCTIONS))]
    return {f"{key}_{index}": value for index, row in enumerate(rows) for key, value in row.items()}


def case(policy: UpstreamPolicy, sizes, index: int) -> dict[str, np.ndarray]:
    """Returns one case's ids, pixels, state, features, normalised and un-normalised actions."""
    upstream = policy.policy
    inputs = upstream.apply_transforms(policy.to_upstream(observation(sizes, index)))
    backbone_inputs, action_inputs = upstream.model.prepare_input(inputs)
    features = upstream.model.backbone(backbone_inputs)
    seen = features["backbone_features"][0].numpy().copy()
    with GivenNoise(torch.from_numpy(cases.noise(index))):
        normalised = upstream.model.action_head.get_action(features, action_inputs)["action_pred"]
    return {
        "ids": inputs["eagle_input_ids"][0].numpy(),
        "pixels": inputs["eagle_pixel_values"].numpy()[cases.PIXELS],
        "state": inputs["state"][0, 0].float().numpy(),
        "features": seen[cases.FEATURES],
        "normalised": normalised[0].numpy(),
        "actions": to_actions(sizes, upstream.unapply_transforms({"action": normalised}))[0],
    }


def published_tokens(directory: Path) -> dict[str, np.ndarray]:
    """Returns prompts' ids by the tokenizer of upstream's package, with the instruction plain and in a list."""
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        os.remove(directory / name)  # so that upstream's own is taken
    found = {}
    for prompt in ("plain", "upstream"):
        policy, sizes = load(directory, prompt)
        for index in range(len(cases.INSTRUCTIONS)):
            inputs = policy.policy.apply_transforms(policy.to_upstream(observation(sizes, index)))
            found[f"{prompt}_{index}"] = inputs["eagle_input_ids"][0].numpy()
    return found


def load(directory: Path, prompt: str = "plain"):
    """Returns upstream's policy in fp32, and the layout."""
    found = find(str(directory))
    one = found.embodiment()
    sizes = layout(one, found.metadata[one.tag])
    upstream = package.load_policy(directory, one, AttentionKernel("sdpa"), "cpu", one.denoising_steps, found.overrides)
    upstream.model.float()
    return UpstreamPolicy(upstream, sizes, Settings(prompt=prompt)), sizes


def observation(sizes, index: int) -> Observation:
    """Returns a case's observation."""
    images = cases.pictures(index, tuple(sizes.embodiment.cameras))
    return Observation(images, cases.state(index, sizes.state_size), cases.INSTRUCTIONS[index], "reference", index)


if __name__ == "__main__":
    main()
