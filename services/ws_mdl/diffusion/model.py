"""The course's noise predictor: a small U-Net conditioned on time step and context.

Names and state-dict keys are the course's. One thing differs: a residual block that changes the number of channels has
a trained shortcut. The original created a new random convolution at every call, so equal inputs gave different outputs.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn


class ResidualConvBlock(nn.Module):
    """Two 3×3 convolutions, with a shortcut around both where `is_res`."""

    def __init__(self, in_channels: int, out_channels: int, is_res: bool = False):
        super().__init__()
        self.is_res = is_res
        self.conv1 = conv_norm_gelu(in_channels, out_channels)
        self.conv2 = conv_norm_gelu(out_channels, out_channels)
        if is_res:
            same = in_channels == out_channels
            self.shortcut = nn.Identity() if same else nn.Conv2d(in_channels, out_channels, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:  # [n, in_channels, h, w]
        out = self.conv2(self.conv1(x))  # [n, out_channels, h, w]
        if self.is_res:
            out = (self.shortcut(x) + out) / math.sqrt(2)  # the sum of two has twice the variance
        return out


def conv_norm_gelu(in_channels: int, out_channels: int) -> nn.Sequential:
    """Return a 3×3 convolution that keeps the image size, batch norm and GELU."""
    return nn.Sequential(nn.Conv2d(in_channels, out_channels, 3, 1, 1), nn.BatchNorm2d(out_channels), nn.GELU())


class UnetDown(nn.Module):
    """Two blocks, then half the height and width."""

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        self.model = nn.Sequential(
            ResidualConvBlock(in_channels, out_channels), ResidualConvBlock(out_channels, out_channels), nn.MaxPool2d(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)  # [n, out_channels, h / 2, w / 2]


class UnetUp(nn.Module):
    """Concatenates the skip connection, doubles height and width, then two blocks."""

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        self.model = nn.Sequential(
            nn.ConvTranspose2d(in_channels, out_channels, 2, 2),
            ResidualConvBlock(out_channels, out_channels),
            ResidualConvBlock(out_channels, out_channels),
        )

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.model(torch.cat((x, skip), dim=1))  # [n, out_channels, 2h, 2w]


class EmbedFC(nn.Module):
    """Embeds a vector (time or context) into `emb_dim` features."""

    def __init__(self, input_dim: int, emb_dim: int):
        super().__init__()
        self.input_dim = input_dim
        self.model = nn.Sequential(nn.Linear(input_dim, emb_dim), nn.GELU(), nn.Linear(emb_dim, emb_dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x.reshape(-1, self.input_dim))  # [n, emb_dim]


class ContextUnet(nn.Module):
    """Predicts the noise in a noisy image.

    in_channels: colour channels. n_feat: width of the network, a multiple of 8. n_cfeat: length of the context. height:
    height and width of the image, a multiple of 4 (16 for sprites, 28 for MNIST). pool: kernel of the average pooling
    at the bottom; height / 4 covers the whole feature map, the course's code had 4 at any height.
    """

    def __init__(
        self, in_channels: int, n_feat: int = 256, n_cfeat: int = 10, height: int = 28, pool: int | None = None
    ):
        super().__init__()
        if height % 4 or height < 8:
            raise ValueError(f"height must be a multiple of 4 and at least 8, got {height}")
        if n_feat % 8:
            raise ValueError(f"n_feat must be a multiple of 8, for 8 groups per norm, got {n_feat}")
        self.in_channels, self.n_feat, self.n_cfeat, self.h = in_channels, n_feat, n_cfeat, height

        self.init_conv = ResidualConvBlock(in_channels, n_feat, is_res=True)
        self.down1 = UnetDown(n_feat, n_feat)
        self.down2 = UnetDown(n_feat, 2 * n_feat)
        self.pool = pool or height // 4
        self.to_vec = nn.Sequential(nn.AvgPool2d(self.pool), nn.GELU())

        self.timeembed1 = EmbedFC(1, 2 * n_feat)
        self.timeembed2 = EmbedFC(1, n_feat)
        self.contextembed1 = EmbedFC(n_cfeat, 2 * n_feat)
        self.contextembed2 = EmbedFC(n_cfeat, n_feat)

        up0 = nn.ConvTranspose2d(2 * n_feat, 2 * n_feat, height // 4, height // 4)
        self.up0 = nn.Sequential(up0, nn.GroupNorm(8, 2 * n_feat), nn.ReLU())
        self.up1 = UnetUp(4 * n_feat, n_feat)
        self.up2 = UnetUp(2 * n_feat, n_feat)
        self.out = nn.Sequential(
            nn.Conv2d(2 * n_feat, n_feat, 3, 1, 1),
            nn.GroupNorm(8, n_feat),
            nn.ReLU(),
            nn.Conv2d(n_feat, in_channels, 3, 1, 1),
        )

    def forward(self, x: Tensor, t: Tensor, c: Tensor | None = None) -> Tensor:
        """Return the noise in `x`, of its shape [n, in_channels, h, h].

        t: time from 0 (clean) to 1 (noise), one value or n. c: context [n, n_cfeat]; None or zeros: no context.
        """
        if c is None:
            c = x.new_zeros(1, self.n_cfeat)
        x = self.init_conv(x)  # [n, f, h, h]
        down1 = self.down1(x)  # [n, f, h/2, h/2]
        down2 = self.down2(down1)  # [n, 2f, h/4, h/4]
        hidden = self.to_vec(down2)  # [n, 2f, 1, 1]

        cemb1, temb1 = (e[:, :, None, None] for e in (self.contextembed1(c), self.timeembed1(t)))  # [n or 1, 2f, 1, 1]
        cemb2, temb2 = (e[:, :, None, None] for e in (self.contextembed2(c), self.timeembed2(t)))  # [n or 1, f, 1, 1]

        up = self.up0(hidden)  # [n, 2f, h/4, h/4]
        up = self.up1(cemb1 * up + temb1, down2)  # [n, f, h/2, h/2]
        up = self.up2(cemb2 * up + temb2, down1)  # [n, f, h, h]
        return self.out(torch.cat((up, x), dim=1))

    def load_course_weights(self, state: Mapping[str, Tensor]) -> None:
        """Load a weights file of the course, which lacks the first block's shortcut.

        In the course that shortcut was random at every call, so zero on average; it is set to zero here.
        """
        missing = {name for name in self.state_dict() if name.startswith("init_conv.shortcut.")} - set(state)
        zeros = {name: torch.zeros_like(self.state_dict()[name]) for name in missing}
        self.load_state_dict({**state, **zeros})


def fused_for_sampling(nn_model: ContextUnet) -> ContextUnet:
    """Return a copy in eval mode with batch norms folded into the convolutions before them.

    The output is the same up to rounding. Sampling calls the network up to 500 times, which is worth the copy.
    """
    fused = ContextUnet(nn_model.in_channels, nn_model.n_feat, nn_model.n_cfeat, nn_model.h, nn_model.pool)
    fused.load_state_dict(nn_model.state_dict())
    fused.eval()
    for block in fused.modules():
        if isinstance(block, ResidualConvBlock):
            for layers in (block.conv1, block.conv2):
                layers[0] = nn.utils.fusion.fuse_conv_bn_eval(layers[0], layers[1])
                layers[1] = nn.Identity()
    parameter = next(nn_model.parameters())
    return fused.to(parameter.device, memory_format=torch.channels_last)
