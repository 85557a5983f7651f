"""Image to patch features: DINOv2 and SigLIP side by side, taken before their last block, and the projector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from services.openvla.checkpoint.config import Tower
from services.openvla.model.linear import Linear, Packed, plain
from vla_modelkit.checkpoint import CheckpointError
from vla_modelkit.weights import WeightSource

PREFIXES = ("vision_backbone.featurizer.", "vision_backbone.fused_featurizer.")  # DINOv2, SigLIP


class _LinspaceOnCpu(TorchFunctionMode):
    """timm reads its stochastic-depth rates from a linspace while it builds; on "meta" there would be no numbers."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.linspace:
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def build_tower(tower: Tower) -> nn.Module:
    """Return timm's model without weights (on "meta"). Raises CheckpointError if timm does not have it."""
    try:
        with torch.device("meta"), _LinspaceOnCpu():
            return timm.create_model(
                tower.timm_id, pretrained=False, num_classes=0, img_size=tower.image_size, act_layer=tower.act_layer
            ).eval()
    except RuntimeError as error:
        raise CheckpointError(f"timm {timm.__version__} cannot build {tower.timm_id!r}: {error}") from error


def kept_tower(tower: Tower) -> nn.Module:
    """Return timm's model without weights, and without what the second-to-last layer's features do not need."""
    model = build_tower(tower)
    model.blocks = model.blocks[:-1]
    model.norm = nn.Identity()
    if getattr(model, "attn_pool", None) is not None:
        model.attn_pool = None
    return model


def load_tower(tower: Tower, prefix: str, source: WeightSource, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """Return timm's model with its weights, see `kept_tower`."""
    model = kept_tower(tower)
    state = {
        name: source.read(prefix + published_name(name)).to(device=device, dtype=dtype) for name in model.state_dict()
    }
    model.load_state_dict(state, assign=True)
    pack_linears(model.requires_grad_(False))
    return model


def pack_linears(model: nn.Module) -> None:
    """Pack the model's linear layers where that is faster, in place."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear) and isinstance(layer := plain(child.weight, child.bias), Packed):
                setattr(parent, name, PackedModule(layer))


class PackedModule(nn.Module):
    def __init__(self, layer: Linear):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def module_bytes(model: nn.Module) -> int:
    packed = sum(module.layer.nbytes for module in model.modules() if isinstance(module, PackedModule))
    return packed + sum(value.nbytes for value in model.state_dict().values())


def published_name(name: str) -> str:
    """Return timm's name as in checkpoints: transformers would rename "gamma"."""
    return name.removesuffix("gamma") + "scale_factor" if name.endswith(".gamma") else name


@dataclass(frozen=True)
class VisionBackbone:
    """Both towers and the projector.

    `mean` and `std` are [2, 3, 1, 1]: each tower normalises pixels its own way.
    """

    towers: tuple[nn.Module, nn.Module]
    mean: Tensor
    std: Tensor
    projector: tuple[Linear, ...]
    dtype: torch.dtype

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return embeddings [B, patches, hidden] of uint8 pixels [B, S, S, 3]."""
        scaled = pixels.permute(0, 3, 1, 2).to(torch.float32) / 255
        seen = [
            tower.get_intermediate_layers(((scaled - mean) / std).to(self.dtype), n=[len(tower.blocks) - 1])[0]
            for tower, mean, std in zip(self.towers, self.mean, self.std, strict=True)
        ]
        return project(torch.cat(seen, dim=2), self.projector)


def project(features: Tensor, layers: tuple[Linear, ...]) -> Tensor:
    """Return features [B, n, D] after linear layers with GELU between them."""
    for index, layer in enumerate(layers):
        features = layer(F.gelu(features) if index else features)
    return features


def vision_shapes(towers: tuple[Tower, Tower], hidden: int) -> dict[str, tuple[int, ...]]:
    """Return checkpoint name -> shape of towers and projector."""
    shapes: dict[str, tuple[int, ...]] = {}
    for tower, prefix in zip(towers, PREFIXES, strict=True):
        state = build_tower(tower).state_dict()  # with the last block's and the head's
        shapes |= {prefix + published_name(name): tuple(value.shape) for name, value in state.items()}
    features = sum(shapes[prefix + "patch_embed.proj.weight"][0] for prefix in PREFIXES)
    sizes = (features, 4 * features, hidden, hidden)
    for index in (1, 2, 3):
        shapes[f"projector.fc{index}.weight"] = (sizes[index], sizes[index - 1])
        shapes[f"projector.fc{index}.bias"] = (sizes[index],)
    return shapes


def load_vision_backbone(
    towers: tuple[Tower, Tower], source: WeightSource, dtype: torch.dtype, device: torch.device
) -> VisionBackbone:
    """Return towers and projector with their weights."""
    projector = tuple(
        plain(*(source.read(f"projector.fc{i}.{kind}").to(device=device, dtype=dtype) for kind in ("weight", "bias")))
        for i in (1, 2, 3)
    )
    models = tuple(load_tower(t, p, source, dtype, device) for t, p in zip(towers, PREFIXES, strict=True))
    counts = [model.patch_embed.num_patches for model in models]
    if counts[0] != counts[1]:
        raise CheckpointError(
            f"the vision towers split an image into {counts[0]} and {counts[1]} patches; expected equally many"
        )
    mean, std = (
        torch.tensor([getattr(tower, name) for tower in towers], dtype=torch.float32, device=device)[..., None, None]
        for name in ("mean", "std")
    )
    return VisionBackbone(models, mean, std, projector, dtype)


def patch_count(towers: tuple[Tower, Tower]) -> int:
    return build_tower(towers[0]).patch_embed.num_patches


def sizes_of(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the total number of elements of tensors of these shapes."""
    return sum(torch.Size(shape).numel() for shape in shapes.values())
