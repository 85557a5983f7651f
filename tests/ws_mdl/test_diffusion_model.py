"""The noise predictor: shapes, determinism, the course's names, and the copy that sampling uses."""

import pytest
import torch

from services.ws_mdl.diffusion.model import ContextUnet, ResidualConvBlock, fused_for_sampling


@pytest.mark.parametrize("height", (8, 16, 28))
@pytest.mark.parametrize("channels", (1, 3))
def test_the_predicted_noise_has_the_images_shape(height, channels):
    nn_model = ContextUnet(channels, n_feat=8, n_cfeat=5, height=height)
    x = torch.randn(3, channels, height, height)
    assert nn_model(x, torch.tensor([0.5]), torch.eye(5)[:3]).shape == x.shape
    assert nn_model(x, torch.rand(3)).shape == x.shape


def test_the_same_input_gives_the_same_output():
    """The original's residual block made a new random convolution at every call."""
    nn_model = ContextUnet(3, n_feat=8, n_cfeat=5, height=16).eval()
    x, t = torch.randn(2, 3, 16, 16), torch.tensor([0.3])
    assert torch.equal(nn_model(x, t), nn_model(x, t))


def test_a_residual_block_has_weights_for_a_change_of_channels_only():
    changing, same, plain = ResidualConvBlock(3, 8, True), ResidualConvBlock(8, 8, True), ResidualConvBlock(3, 8)
    assert sum(name.startswith("shortcut") for name in changing.state_dict()) == 2
    assert not [name for block in (same, plain) for name in block.state_dict() if name.startswith("shortcut")]


def test_no_context_is_a_context_of_zeros():
    nn_model = ContextUnet(1, n_feat=8, n_cfeat=4, height=8).eval()
    x, t = torch.randn(2, 1, 8, 8), torch.tensor([0.3])
    torch.testing.assert_close(nn_model(x, t), nn_model(x, t, torch.zeros(2, 4)))


def test_time_and_context_matter():
    nn_model = ContextUnet(1, n_feat=8, n_cfeat=4, height=8).eval()
    x = torch.randn(1, 1, 8, 8)
    one, other = torch.eye(4)[:1], torch.eye(4)[1:2]
    assert not torch.allclose(nn_model(x, torch.tensor([0.1]), one), nn_model(x, torch.tensor([0.9]), one))
    assert not torch.allclose(nn_model(x, torch.tensor([0.1]), one), nn_model(x, torch.tensor([0.1]), other))


def test_the_courses_keys_and_its_weight_files():
    nn_model = ContextUnet(3, n_feat=64, n_cfeat=5, height=16)
    keys = set(nn_model.state_dict())
    assert {"init_conv.conv1.0.weight", "down1.model.0.conv1.1.running_mean", "timeembed1.model.2.bias"} <= keys
    assert {"contextembed2.model.0.weight", "up0.0.weight", "up1.model.0.weight", "out.3.bias"} <= keys
    published = {name: value + 1 for name, value in nn_model.state_dict().items() if "shortcut" not in name}
    assert keys - set(published) == {"init_conv.shortcut.weight", "init_conv.shortcut.bias"}
    nn_model.load_course_weights(published)
    loaded = nn_model.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in published.items())
    assert loaded["init_conv.shortcut.weight"].abs().sum() == 0
    with pytest.raises(RuntimeError, match=r"out\.3\.bias"):
        nn_model.load_course_weights({name: value for name, value in published.items() if name != "out.3.bias"})


def test_the_fused_copy_gives_the_same_numbers():
    torch.manual_seed(0)
    nn_model = ContextUnet(3, n_feat=16, n_cfeat=5, height=16)
    x = torch.randn(8, 3, 16, 16)
    for _ in range(3):  # batch norms with means and variances of their own
        nn_model.train()(x, torch.rand(8))
    expected = nn_model.eval()(x, torch.tensor([0.4]), torch.eye(5)[[0, 1, 2, 3, 4, 0, 1, 2]])
    fused = fused_for_sampling(nn_model)
    got = fused(x, torch.tensor([0.4]), torch.eye(5)[[0, 1, 2, 3, 4, 0, 1, 2]])
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-4)
    assert not [m for m in fused.modules() if isinstance(m, torch.nn.BatchNorm2d)]


@pytest.mark.parametrize(("settings", "words"), [({"height": 18}, "multiple of 4"), ({"n_feat": 12}, "multiple of 8")])
def test_sizes_that_cannot_be_are_named(settings, words):
    with pytest.raises(ValueError, match=words):
        ContextUnet(**{"in_channels": 1, "n_feat": 8, "n_cfeat": 2, "height": 16, **settings})
