"""Our engine against what upstream's unmodified code answered on the same checkpoints (make_reference.py).

The checkpoints are made from the same seed here, so these tests hold the whole path: tokenizer, picture, weights,
vision, projector, language model, decoding, un-normalising.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from services.openvla.checkpoint.tokenizer import PromptTokenizer
from services.openvla.decoding.actions import codec_of, unnormalise
from services.openvla.service.policy import resize
from tests.openvla.cases import COLUMNS, INSTRUCTIONS, pictures

DATA = Path(__file__).parent / "data"
SIZES = ("tiny", "siglip")
LOGIT_TOLERANCE = 1e-3


@pytest.fixture(params=SIZES)
def size(request):
    return request.param


@pytest.fixture
def reference(size):
    with np.load(DATA / f"reference-{size}.npz", allow_pickle=False) as stored:
        return dict(stored)


@pytest.fixture
def inputs(size, engines, checkpoints):
    """(pixels uint8 [8, S, S, 3], prompts as ids), by our own processing."""
    tower = engines(size).model.config.towers[0]
    tokenizer = PromptTokenizer(checkpoints(size))
    return np.stack([resize(image, tower) for image in pictures()]), [tokenizer.prompt_ids(one) for one in INSTRUCTIONS]


def test_prompts_are_tokenised_as_upstream_does(inputs, reference):
    for ids, stored in zip(inputs[1], reference["ids"], strict=True):
        assert ids == stored[: len(ids)].tolist()
        assert not stored[len(ids) :].any()


def test_images_are_resized_and_normalised_as_upstream_does(inputs, reference, size, engines):
    vision = engines(size).model.vision
    for index, stored in zip((2, 7), reference["pixels"], strict=True):  # of the right size, and resized
        scaled = torch.from_numpy(inputs[0][index]).permute(2, 0, 1) / 255
        ours = torch.cat([(scaled - mean) / std for mean, std in zip(vision.mean, vision.std, strict=True)])
        np.testing.assert_array_equal(ours.numpy(), stored)


@pytest.mark.parametrize(
    ("width", "kind"), [(1, "none"), (1, "half"), (3, "half"), *((6, g) for g in ("right", "wrong", "half", "aside"))]
)
@pytest.mark.parametrize("batch", [1, 8])
def test_tokens_and_logits_are_upstreams(inputs, reference, size, engines, batch, width, kind):
    engine, (pixels, prompts) = engines(size), inputs
    engine.width = width
    draft = draft_of(kind, reference["tokens"])
    for start in range(0, 8, batch):
        rows = slice(start, start + batch)
        given = None if draft is None else draft[rows]
        made = engine.generate(pixels[rows], prompts[rows], given, keep_logits=True)
        np.testing.assert_array_equal(made.tokens, reference["tokens"][rows])
        assert np.abs(made.logits[:, :, COLUMNS] - reference["scores"][rows]).max() < LOGIT_TOLERANCE


def draft_of(kind, tokens):
    """Returns int64 [8, 3, 7]: what will be chosen, something else, every second one right, or right at the side."""
    if kind == "none":
        return None
    wrong, half = 31744 + (tokens - 31744 + 1) % 256, np.arange(7) % 2
    main = {"right": tokens, "wrong": wrong, "half": np.where(half, tokens, wrong), "aside": wrong}[kind]
    second = np.where(half, wrong, tokens) if kind == "aside" else wrong
    return np.stack((main, wrong, second), axis=1)


def test_actions_are_upstreams(inputs, reference, size, engines):
    config = engines(size).model.config
    values = codec_of(config).values(reference["tokens"])
    actions = unnormalise(values, config.norm_stats["libero_goal_no_noops"])
    np.testing.assert_array_equal(actions, reference["actions"])


def test_padded_shapes_change_nothing(inputs, reference, size, engines):
    """What a GPU runs, with batch and prompts padded to a few sizes, run here without capture."""
    engine, (pixels, prompts) = engines(size), inputs
    engine.fixed_shapes, engine.width = True, 6
    try:
        for count in (1, 3, 8):
            for kind in ("none", "half", "aside"):
                draft = draft_of(kind, reference["tokens"][:count])
                made = engine.generate(pixels[:count], prompts[:count], draft, keep_logits=True)
                np.testing.assert_array_equal(made.tokens, reference["tokens"][:count])
                assert np.abs(made.logits[:, :, COLUMNS] - reference["scores"][:count]).max() < LOGIT_TOLERANCE
    finally:
        engine.fixed_shapes = False
