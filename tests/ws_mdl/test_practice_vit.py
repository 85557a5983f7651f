"""The Vision Transformer: torchvision's with the same weights, blind to order without positions, frames as a class."""

import pytest
import torch
from torchvision.models import VisionTransformer as Theirs

from services.ws_mdl.practice import vit
from services.ws_mdl.practice.vit import Config, VisionTransformer, attention_of, plot_rollouts, rollout
from tests.minivla.test_minivla import STEPS, write
from tests.ws_mdl.practice import copy_block, copy_norm, stirred
from vla_common.volume import Volume
from vla_datasets.errors import DatasetError

SIZE = {"patch": 4, "d_model": 16, "N": 2, "h": 2, "d_ff": 24}


def model(positions: str = "learned") -> VisionTransformer:
    return stirred(VisionTransformer(16, 3, 5, **SIZE, positions=positions))


@torch.no_grad()
def test_it_is_torchvisions_with_the_same_weights():
    ours, theirs = model(), Theirs(16, 4, 2, 2, 16, 24, num_classes=5).eval()
    theirs.conv_proj.load_state_dict(ours.patches.proj.state_dict())
    theirs.class_token.copy_(ours.class_token)
    theirs.encoder.pos_embedding.copy_(ours.positions.pe)
    for one, block in zip(theirs.encoder.layers, ours.encoder.layers, strict=True):
        copy_block(block, one.self_attention, one.ln_1, one.ln_2, one.mlp[0], one.mlp[3])
    copy_norm(ours.encoder.norm, theirs.encoder.ln)
    theirs.heads.head.load_state_dict(ours.head.state_dict())
    x = torch.randn(3, 3, 16, 16)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_a_patch_is_a_square_times_one_matrix():
    ours, x = model(), torch.randn(2, 3, 16, 16)
    squares = x.unfold(2, 4, 4).unfold(3, 4, 4)  # (batch, channels, 4, 4, patch, patch)
    squares = squares.permute(0, 2, 3, 1, 4, 5).flatten(1, 2).flatten(2)  # row by row
    by_hand = squares @ ours.patches.proj.weight.flatten(1).T + ours.patches.proj.bias
    torch.testing.assert_close(ours.patches(x), by_hand, rtol=1e-4, atol=1e-5)


def shuffled(x: torch.Tensor, patch: int = 4) -> torch.Tensor:
    """Return pictures whose patches changed places."""
    squares = x.unfold(2, patch, patch).unfold(3, patch, patch).flatten(2, 3)
    order = torch.randperm(squares.shape[2], generator=torch.Generator().manual_seed(0))
    grid = x.shape[-1] // patch
    squares = squares[:, :, order].unflatten(2, (grid, grid))
    return squares.permute(0, 1, 2, 4, 3, 5).reshape(x.shape)


@torch.no_grad()
@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal", "rotary", "relative"])
def test_without_positions_an_image_is_a_bag_of_patches(positions):
    ours, x = model(positions), torch.randn(4, 3, 16, 16)
    assert not torch.equal(x, shuffled(x)) and torch.equal(
        x.flatten(1).sort().values, shuffled(x).flatten(1).sort().values
    )
    same = torch.allclose(ours(x), ours(shuffled(x)), atol=1e-4)
    assert same == (positions == "none")


def test_a_rollout_is_the_product_of_the_layers_mixtures():
    maps = torch.rand(2, 1, 1, 5, 5).softmax(dim=-1)  # 2 layers, 1 head, a class token and 2 × 2 patches
    first, second = ((maps[layer, 0, 0] + torch.eye(5)) / 2 for layer in range(2))
    row = (second @ first)[0, 1:]
    torch.testing.assert_close(rollout(maps)[0], (row / row.sum()).view(2, 2))
    still = rollout(torch.eye(5).expand(3, 1, 2, 5, 5) * 0 + 1 / 5)
    torch.testing.assert_close(still[0], torch.full((2, 2), 0.25))


def test_a_rollout_of_a_model_adds_up_and_is_drawn():
    ours, x = model(), torch.randn(3, 3, 16, 16)
    maps = attention_of(ours, x)
    assert maps.shape == (2, 3, 2, 17, 17) and torch.allclose(maps.sum(-1), torch.ones(2, 3, 2, 17))
    seen = rollout(maps)
    assert seen.shape == (3, 4, 4) and torch.allclose(seen.sum((1, 2)), torch.ones(3)) and (seen >= 0).all()
    assert len(plot_rollouts(ours, x).axes) == 6


def test_images_that_cannot_be_cut_are_refused():
    with pytest.raises(ValueError, match="16 × 16 cannot be cut into patches of 5; choose another patch"):
        VisionTransformer(16, 1, 10, patch=5)


def test_a_moved_image_keeps_what_is_in_its_middle():
    x = torch.zeros(50, 1, 16, 16)
    x[:, :, 7, 7] = 1
    seen = vit.random_shift(x, 2, torch.Generator().manual_seed(0))
    places = {tuple(place.tolist()) for place in seen.nonzero()[:, 2:]}
    assert (seen.sum((1, 2, 3)) == 1).all() and len(places) > 15
    assert all(5 <= row <= 9 and 5 <= column <= 9 for row, column in places)
    assert torch.equal(vit.random_shift(x, 0, torch.Generator()), x)


def test_digits_that_are_held_out_are_never_learned_from():
    found = vit.load(Config(held_fraction=0.25), Volume())
    assert (len(found.train), len(found.val)) == (1348, 449)
    learned = {row.numpy().tobytes() for row in found.train.x}
    assert sum(row.numpy().tobytes() in learned for row in found.val.x) <= 1  # two pictures may be alike


def test_the_frames_of_a_data_set_are_reported_apart_by_task_and_episodes_are_held_out_whole(volume):
    write(volume.path("datasets") / "dots", 10)
    found = vit.load(Config(data="dots", side=16, held_fraction=0.2), volume)
    assert found.train.classes == ("Go to the red dot", "Go to the blue dot")
    assert (len(found.train), len(found.val)) == (8 * STEPS, 2 * STEPS)
    assert found.val.labels.tolist() == [0] * STEPS + [1] * STEPS, "the last episode of each task"
    assert found.train.x.shape[1:] == (3, 16, 16) and found.train.x.min() >= -1 and found.train.x.max() <= 1


def test_a_data_set_that_cannot_be_told_apart_reports_it(volume):
    directory = volume.path("datasets")
    write(directory / "one", 1)
    write(directory / "three", 3)
    write(directory / "wrist", 4, cameras=("wrist",))
    with pytest.raises(ValueError, match="one has one task, 'Go to the red dot'; expected 2 at least"):
        vit.load(Config(data="one"), volume)
    with pytest.raises(ValueError, match="the task 'Go to the blue dot' has 1 episode; expected 2 at least"):
        vit.load(Config(data="three"), volume)
    with pytest.raises(DatasetError, match="wrist has no images .*; it has .*wrist"):
        vit.load(Config(data="wrist"), volume)
    with pytest.raises(ValueError, match="data 'nothing' not found; expected digits, sprites, mnist"):
        vit.load(Config(data="nothing"), volume)
