"""The action head of GR00T N1.5: flow matching with a diffusion transformer (DiT), one encoder and decoder per robot.

    features [B, S, C] of the backbone -> norm -> self-attention            "what is seen and said"
    state [B, 64]      -> this robot's encoder                  -> 1 token
    noise [B, 16, 32]  -> this robot's encoder, with the time t -> 16 tokens
    DiT over [state, 32 learnt tokens, actions], cross-attending to the features -> this robot's decoder -> velocity

An action chunk is noise that has followed the velocity from t = 0 to t = 1, in a few Euler steps. Attribute names are
the published checkpoint's keys. Shapes: B observations, S prompt tokens, H actions in a chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.gr00t.checkpoint.config import Blocks, HeadConfig

KeysValues = tuple[Tensor, Tensor]  # each [B, heads, S, head_dim]
TIME_WIDTH = 256  # sines and cosines of the flow's time
_EPS = 1e-5


class PerRobotLinear(nn.Module):
    """A linear layer for each robot: W [robots, in, out], b [robots, out]. robot: a number, or one per row, int [B]."""

    def __init__(self, robots: int, inner: int, outer: int):
        super().__init__()
        self.W = nn.Parameter(torch.empty(robots, inner, outer))
        self.b = nn.Parameter(torch.empty(robots, outer))

    def forward(self, x: Tensor, robot: int) -> Tensor:  # [B, T, in] -> [B, T, out]
        return x @ self.W[robot] + self.b[robot].unsqueeze(-2)


class PerRobotMLP(nn.Module):
    """Two layers with a ReLU between them."""

    def __init__(self, robots: int, inner: int, hidden: int, outer: int):
        super().__init__()
        self.layer1 = PerRobotLinear(robots, inner, hidden)
        self.layer2 = PerRobotLinear(robots, hidden, outer)

    def forward(self, x: Tensor, robot: int) -> Tensor:
        return self.layer2(F.relu(self.layer1(x, robot)), robot)


class ActionEncoder(nn.Module):
    """Noisy actions and the flow's time to one token per action."""

    def __init__(self, robots: int, action_dim: int, width: int):
        super().__init__()
        self.W1 = PerRobotLinear(robots, action_dim, width)
        self.W2 = PerRobotLinear(robots, 2 * width, width)
        self.W3 = PerRobotLinear(robots, width, width)

    def forward(self, actions: Tensor, wave: Tensor, robot: int) -> Tensor:  # [B, H, A], [width] -> [B, H, width]
        x = self.W1(actions, robot)
        x = torch.cat((x, wave.expand_as(x)), dim=-1)
        return self.W3(F.silu(self.W2(x, robot)), robot)


class Attention(nn.Module):
    """Multi-head attention. Keys and values can be made before and used again."""

    def __init__(self, blocks: Blocks, context: int):
        super().__init__()
        self.heads, self.dropout = blocks.heads, blocks.dropout
        self.to_q = nn.Linear(blocks.width, blocks.width)
        self.to_k = nn.Linear(context, blocks.width)
        self.to_v = nn.Linear(context, blocks.width)
        self.to_out = nn.ModuleList([nn.Linear(blocks.width, blocks.width)])

    def keys_values(self, context: Tensor) -> KeysValues:  # [B, S, context]
        return self._split(self.to_k(context)), self._split(self.to_v(context))

    def forward(self, x: Tensor, context: KeysValues | None = None, visible: Tensor | None = None) -> Tensor:
        keys, values = self.keys_values(x) if context is None else context
        attended = F.scaled_dot_product_attention(self._split(self.to_q(x)), keys, values, attn_mask=visible)
        out = self.to_out[0](attended.transpose(1, 2).flatten(2))
        # twice, as upstream: in its attention, and in the block behind it
        return F.dropout(F.dropout(out, self.dropout), self.dropout) if self.training else out

    def _split(self, x: Tensor) -> Tensor:  # [B, T, width] -> [B, heads, T, head_dim]
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    """A linear layer to four times the width, GELU, and back."""

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.dropout = dropout
        self.net = nn.ModuleDict(
            {"0": nn.ModuleDict({"proj": nn.Linear(width, 4 * width)}), "2": nn.Linear(4 * width, width)}
        )

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.net["0"]["proj"](x), approximate="tanh")
        if self.training:
            return F.dropout(self.net["2"](F.dropout(hidden, self.dropout)), self.dropout)
        return self.net["2"](hidden)


class AdaptiveNorm(nn.Module):
    """A layer norm whose scale and shift follow from the flow's time."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, 2 * width)

    def modulation(self, time: Tensor) -> Tensor:  # [..., width] -> scale and shift [..., 2 * width]
        return self.linear(F.silu(time))


class MixerBlock(nn.Module):
    """Self-attention and feed-forward over the backbone's features."""

    def __init__(self, blocks: Blocks):
        super().__init__()
        self.norm1, self.norm3 = nn.LayerNorm(blocks.width, _EPS), nn.LayerNorm(blocks.width, _EPS)
        self.attn1 = Attention(blocks, blocks.width)
        self.ff = FeedForward(blocks.width, blocks.dropout)

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        x = x + self.attn1(self.norm1(x), visible=visible)
        return x + self.ff(self.norm3(x))


class DitBlock(nn.Module):
    """Attention to the features (every even block) or among the tokens (every odd one), and feed-forward."""

    def __init__(self, blocks: Blocks, context: int | None):
        super().__init__()
        self.crosses = context is not None
        self.norm1 = AdaptiveNorm(blocks.width)
        self.attn1 = Attention(blocks, context or blocks.width)
        self.ff = FeedForward(blocks.width, blocks.dropout)

    def forward(self, x: Tensor, modulation: Tensor, context: KeysValues | None, visible: Tensor | None) -> Tensor:
        x = x + self.attn1(modulated(x, *modulation.chunk(2, dim=-1)), context, visible if self.crosses else None)
        return x + self.ff(plain_norm(x))


class TimeEncoder(nn.Module):
    """The flow's time as one vector: sines and cosines through two linear layers."""

    def __init__(self, width: int):
        super().__init__()
        layers = {"linear_1": nn.Linear(TIME_WIDTH, width), "linear_2": nn.Linear(width, width)}
        self.timestep_embedder = nn.ModuleDict(layers)

    def forward(self, times: Tensor) -> Tensor:  # [...] -> [..., width]
        first, second = self.timestep_embedder.values()
        sin, cos = waves(times, TIME_WIDTH // 2, TIME_WIDTH // 2 - 1)
        return second(F.silu(first(torch.cat((cos, sin), dim=-1).to(first.weight.dtype))))


class Dit(nn.Module):
    def __init__(self, blocks: Blocks, context: int, out: int):
        super().__init__()
        self.timestep_encoder = TimeEncoder(blocks.width)
        self.transformer_blocks = nn.ModuleList(
            DitBlock(blocks, None if index % 2 else context) for index in range(blocks.layers)
        )
        self.proj_out_1 = nn.Linear(blocks.width, 2 * blocks.width)
        self.proj_out_2 = nn.Linear(blocks.width, out)

    def forward(
        self, x: Tensor, moment: FlowInputs, contexts: list[KeysValues | None], visible: Tensor | None
    ) -> Tensor:
        for block, modulation, context in zip(self.transformer_blocks, moment.modulations, contexts, strict=True):
            x = block(x, modulation, context, visible)
        shift, scale = moment.out.chunk(2, dim=-1)  # the other way round than in the blocks
        return self.proj_out_2(modulated(x, scale, shift, eps=1e-6))


@dataclass(frozen=True)
class FlowInputs:
    """Network inputs that depend on the flow's time alone, not on the observation.

    wave [width] for the action encoder; modulations [2 * width] of each block; out [2 * width] of the last norm. In
    training each sample has a time of its own: [B, 1, …].
    """

    wave: Tensor
    modulations: list[Tensor]
    out: Tensor


class ActionHead(nn.Module):
    def __init__(self, config: HeadConfig):
        super().__init__()
        self.config = config
        self.model = Dit(config.dit, config.features, config.dit_out)
        self.state_encoder = PerRobotMLP(config.robots, config.state_dim, config.hidden, config.width)
        self.action_encoder = ActionEncoder(config.robots, config.action_dim, config.width)
        self.action_decoder = PerRobotMLP(config.robots, config.dit_out, config.hidden, config.action_dim)
        self.future_tokens = nn.Embedding(config.future_tokens, config.width)
        self.position_embedding = nn.Embedding(config.positions, config.width)
        self.vlln = nn.LayerNorm(config.features, _EPS)
        mixers = (MixerBlock(config.mixer) for _ in range(config.mixer.layers))
        self.vl_self_attention = nn.ModuleDict({"transformer_blocks": nn.ModuleList(mixers)})

    def mix(self, features: Tensor, visible: Tensor | None = None) -> Tensor:
        """Return the features that the DiT attends to, [B, S, C]. visible: bool [B, 1, 1, S], False for padding."""
        x = self.vlln(features)
        for block in self.vl_self_attention["transformer_blocks"]:
            x = block(x, visible)
        return x

    def moment(self, times: Tensor) -> FlowInputs:  # int [...], in buckets
        """Return the time-dependent inputs; they are the same for every observation."""
        encoded, half = self.model.timestep_encoder(times), self.config.width // 2
        wave = torch.cat(waves(times, half, half), dim=-1).to(encoded.dtype)
        by_block = [block.norm1.modulation(encoded) for block in self.model.transformer_blocks]
        return FlowInputs(wave, by_block, self.model.proj_out_1(F.silu(encoded)))

    def moments(self, steps: int) -> list[FlowInputs]:
        """Return the time-dependent inputs of each of `steps` Euler steps."""
        buckets = self.config.time_buckets
        times = torch.tensor([int(step / steps * buckets) for step in range(steps)], device=self.vlln.weight.device)
        every = self.moment(times)
        return [
            FlowInputs(every.wave[i], [modulation[i] for modulation in every.modulations], every.out[i])
            for i in range(steps)
        ]

    def velocity(
        self, actions: Tensor, state_token: Tensor, robot: int, moment: FlowInputs,
        contexts: list[KeysValues | None], visible: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the flow's velocity [B, H, A] at noisy actions [B, H, A]; contexts: of `contexts`."""
        tokens = self.action_encoder(actions, moment.wave, robot)
        tokens = tokens + self.position_embedding.weight[: tokens.shape[1]]
        future = self.future_tokens.weight.expand(len(tokens), -1, -1)
        out = self.model(torch.cat((state_token, future, tokens), dim=1), moment, contexts, visible)
        return self.action_decoder(out[:, -tokens.shape[1] :], robot)

    def contexts(self, seen: Tensor) -> list[KeysValues | None]:
        """Return keys and values [B, heads, S, head_dim] of the features for each cross-attention block."""
        return [block.attn1.keys_values(seen) if block.crosses else None for block in self.model.transformer_blocks]

    def act(
        self, seen: Tensor, state: Tensor, noise: Tensor, robot: int, moments: list[FlowInputs],
        visible: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the normalised actions, float32 [B, H, A].

        seen [B, S, C] of `mix`; state [B, state_dim]; noise float32 [B, H, A]; robot: whose encoders; moments: one per
        Euler step. Keys and values of the features are made once: the steps do not change them. The flow is
        integrated in float32, whatever the network computes in.
        """
        contexts, state_token, actions = self.contexts(seen), self.state_encoder(state[:, None], robot), noise
        for moment in moments:
            velocity = self.velocity(actions.to(seen.dtype), state_token, robot, moment, contexts, visible)
            actions = actions + velocity.float() / len(moments)
        return actions


def modulated(x: Tensor, scale: Tensor, shift: Tensor, eps: float = _EPS) -> Tensor:
    """Return the layer norm of x with a given scale and shift."""
    return plain_norm(x, eps) * (1 + scale) + shift


def plain_norm(x: Tensor, eps: float = _EPS) -> Tensor:
    """Return the layer norm of x without weights. int: an exported module's norm has one size."""
    return F.layer_norm(x, (int(x.shape[-1]),), eps=eps)


def waves(times: Tensor, count: int, base: int) -> tuple[Tensor, Tensor]:
    """Return sines and cosines float32 [..., count] of the times at frequencies from 1 to 1 / 10000."""
    frequencies = torch.exp(torch.arange(count, device=times.device) * (-math.log(10000.0) / base))
    angles = times[..., None].float() * frequencies
    return angles.sin(), angles.cos()
