"""The reference of bench/openvla.py: OpenVLA as upstream computes it, built from transformers and timm.

Whole vision towers, features of the second-to-last layer, `LlamaForCausalLM.generate` on the merged embeddings: a
growing cache, the head at every position of the prompt, one token per pass. Upstream's surrounding Python code is left
out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import no_init_weights
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from services.openvla.checkpoint.config import ModelConfig, Tower
from services.openvla.checkpoint.statistics import ACTION_TOKENS
from services.openvla.model.action_head import load_parts
from services.openvla.model.oft import END, PLACEHOLDERS
from services.openvla.model.vision import PREFIXES, build_tower, project, published_name
from vla_modelkit.weights import WeightSource

LANGUAGE = "language_model."


class PlainOpenVLA:
    """Upstream's computation at batch 1."""

    def __init__(self, config: ModelConfig, source: WeightSource, dtype: torch.dtype, device: torch.device):
        self._device, self._dtype = device, dtype
        self._towers = [_tower(t, p, source, dtype, device) for t, p in zip(config.towers, PREFIXES, strict=True)]
        self._norms = [
            [torch.tensor(values, device=device)[:, None, None] for values in (t.mean, t.std)] for t in config.towers
        ]
        self._projector = [
            [source.read(f"projector.fc{i}.{kind}").to(device, dtype) for kind in ("weight", "bias")] for i in (1, 2, 3)
        ]
        self.llama = _llama(config, source, dtype, device)

    @torch.inference_mode()
    def generate(self, pixels: np.ndarray, prompt: Sequence[int]) -> np.ndarray:
        """Return int64 [7] for uint8 pixels [S, S, 3] and token ids."""
        embedded = self.llama.get_input_embeddings()(torch.tensor([list(prompt)], device=self._device))
        merged = torch.cat((embedded[:, :1], self.see(pixels), embedded[:, 1:]), dim=1)
        mask = torch.ones(merged.shape[:2], dtype=torch.int64, device=self._device)
        made = self.llama.generate(
            inputs_embeds=merged, attention_mask=mask, max_new_tokens=ACTION_TOKENS, do_sample=False
        )
        return made[0].cpu().numpy()

    def see(self, pixels: np.ndarray) -> Tensor:
        """Return embeddings [1, patches, hidden] of uint8 pixels [S, S, 3]."""
        scaled = torch.from_numpy(pixels).to(self._device).permute(2, 0, 1).float() / 255
        seen = []
        for tower, (mean, std) in zip(self._towers, self._norms, strict=True):
            normal = ((scaled - mean) / std)[None].to(self._dtype)
            seen.append(tower.get_intermediate_layers(normal, n={len(tower.blocks) - 2})[0])
        features = torch.cat(seen, dim=2)
        for index, (weight, bias) in enumerate(self._projector):
            features = F.linear(F.gelu(features) if index else features, weight, bias)
        return features


def bidirectional(attention: nn.Module, hidden_states: Tensor, position_ids: Tensor, **_: object) -> tuple[Any, ...]:
    """The attention of OpenVLA-OFT's fork of transformers, without padding: no mask, not causal."""
    shape = (*hidden_states.shape[:2], -1, attention.head_dim)
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    q, k, v = (layer(hidden_states).view(shape).transpose(1, 2) for layer in projections)
    q, k = apply_rotary_pos_emb(q, k, *attention.rotary_emb(v, position_ids))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=False)
    return attention.o_proj(mixed.transpose(1, 2).flatten(2)), None, None


class PlainOFT:
    """OpenVLA-OFT's computation at batch 1: one pass, image after image, the head of the vocabulary at every token."""

    def __init__(self, config: ModelConfig, source: WeightSource, dtype: torch.dtype, device: torch.device):
        self._plain = PlainOpenVLA(config, source, dtype, device)
        for layer in self._plain.llama.model.layers:
            layer.self_attn.forward = partial(bidirectional, layer.self_attn)
        self._device = device
        assert config.oft is not None
        proprio, head = load_parts(config.oft, source, self._plain.llama.get_input_embeddings().weight)
        assert proprio is not None and head is not None
        self._proprio, self._head = proprio, head

    @torch.inference_mode()
    def generate(self, images: np.ndarray, prompt: Sequence[int], state: np.ndarray) -> np.ndarray:
        """Return normalised actions [8, 7] of uint8 images [n, S, S, 3], token ids and a normalised state [8]."""
        llama = self._plain.llama
        ids = torch.tensor([[*prompt, *[1] * PLACEHOLDERS, END]], device=self._device)
        embedded = llama.get_input_embeddings()(ids)
        embedded[:, len(prompt) : -1] = 0
        proprio = project(torch.from_numpy(state).to(embedded)[None, None], self._proprio)
        seen = [self._plain.see(image) for image in images]
        merged = torch.cat((embedded[:, :1], *seen, proprio, embedded[:, 1:]), dim=1)
        mask = torch.ones(merged.shape[:2], dtype=torch.int64, device=self._device)
        hidden = llama(inputs_embeds=merged, attention_mask=mask, output_hidden_states=True).hidden_states[-1]
        first = merged.shape[1] - 2 - PLACEHOLDERS
        return np.asarray(self._head(hidden[:, first : first + PLACEHOLDERS])[0].float().cpu())


def _tower(tower: Tower, prefix: str, source: WeightSource, dtype: torch.dtype, device: torch.device) -> nn.Module:
    model = build_tower(tower)
    state = {name: source.read(prefix + published_name(name)).to(device, dtype) for name in model.state_dict()}
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(False)


def _llama(config: ModelConfig, source: WeightSource, dtype: torch.dtype, device: torch.device) -> LlamaForCausalLM:
    shape = config.llama
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    fields = {name: getattr(shape, name) for name in names}
    fields |= {"num_key_value_heads": shape.num_key_value_heads, "pad_token_id": 32000}
    settings = LlamaConfig(**fields, attn_implementation="sdpa")
    with no_init_weights(), torch.device(device):
        model = LlamaForCausalLM(settings)
    state = {name: source.read(LANGUAGE + name).to(device, dtype) for name in model.state_dict()}
    model.load_state_dict(state, assign=True)
    return model.eval().requires_grad_(False)
