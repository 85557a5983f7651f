"""Lesson 3: a vision-language-action model (OpenVLA), from an image and a sentence to the seven numbers of an action.

Create a small random model with `./lab checkpoint openvla --tiny`, then run `./lab shell openvla --command "python -m
lessons.vla DIRECTORY"` with the directory that it prints. Read from top to bottom: each part uses only what is above.
`services/openvla` is the same model, fast; a test compares scores, tokens and actions of the same checkpoint. Comments
at the end of a line give shapes, and a test checks each of them.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

PROMPT = "In: What action should the robot take to {instruction}?\nOut:"
BOS, SPACE = 1, 29871  # first token of a prompt; token between "Out:" and the action in the training data
TOWERS = ("vision_backbone.featurizer.", "vision_backbone.fused_featurizer.")  # DINOv2, SigLIP
HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1152: 16}  # of a vision transformer, by its width


# --- 1. the checkpoint -----------------------------------------------------------------------------------------
def read_checkpoint(directory: Path) -> tuple[dict[str, Tensor], dict]:
    """Return the weights by name, float32, and config.json with the statistics of the actions."""
    from safetensors.torch import load_file

    weights = {}
    for file in sorted(directory.glob("*.safetensors")):
        weights |= {name: value.float() for name, value in load_file(file).items()}
    config = json.loads((directory / "config.json").read_text())
    statistics = directory / "dataset_statistics.json"  # of a fine-tuned model
    if statistics.is_file():
        config["norm_stats"] = json.loads(statistics.read_text())
    preprocessing = json.loads((directory / "preprocessor_config.json").read_text())
    return weights, {**config, "pixels": preprocessing["tvf_normalize_params"]}


def prompt_ids(instruction: str, directory: Path) -> list[int]:
    """Return the token ids of the prompt that OpenVLA was trained with."""
    from tokenizers import Tokenizer

    ids = (
        Tokenizer.from_file(str(directory / "tokenizer.json"))
        .encode(PROMPT.format(instruction=instruction.lower()))
        .ids
    )
    return [BOS, *(token for token in ids if token != BOS), SPACE]


# --- 2. vision --------------------------------------------------------------------------------------------------
def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return softmax(q · kᵀ / √head_dim) · v; as in lesson 1."""
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5  # (heads, tokens, tokens)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)  # (heads, tokens, tokens)
    return torch.softmax(scores, dim=-1) @ v  # (heads, tokens, head_dim)


def tower(pixels: Tensor, w: dict[str, Tensor]) -> Tensor:
    """Return a vision transformer's features of normalised pixels [3, side, side], before its last block."""
    patch = w["patch_embed.proj.weight"]  # (wide, 3, stride, stride)
    x = F.conv2d(pixels[None], patch, w["patch_embed.proj.bias"], stride=patch.shape[-1])[0]  # (wide, rows, columns)
    x = x.flatten(1).T  # (patches, wide)
    first = [w[name][0] for name in ("cls_token", "reg_token") if name in w]  # tokens without a patch
    positions = w["pos_embed"][0]
    if len(positions) == len(x):  # DINOv2 with registers: only patches have a position
        x = torch.cat([*first, x + positions])
    else:
        x = torch.cat([*first, x]) + positions
    depth = 1 + max(int(name.split(".")[1]) for name in w if name.startswith("blocks."))
    for number in range(depth - 1):
        x = vision_block(x, {name.split(".", 2)[2]: w[name] for name in w if name.startswith(f"blocks.{number}.")})
    return x[sum(map(len, first)) :]  # (patches, wide)


def vision_block(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    """Return tokens after self-attention and the feed-forward layers."""
    count, wide = x.shape
    y = F.layer_norm(x, (wide,), w["norm1.weight"], w["norm1.bias"], 1e-6)  # (count, wide)
    qkv = F.linear(y, w["attn.qkv.weight"], w["attn.qkv.bias"])  # (count, 3 * wide)
    q, k, v = qkv.view(count, 3, HEADS[wide], -1).permute(1, 2, 0, 3)
    y = attention(q, k, v).transpose(0, 1).flatten(1)  # (count, wide)
    y = F.linear(y, w["attn.proj.weight"], w["attn.proj.bias"])  # (count, wide)
    x = x + y * w.get("ls1.scale_factor", 1.0)  # (count, wide)
    y = F.layer_norm(x, (wide,), w["norm2.weight"], w["norm2.bias"], 1e-6)  # (count, wide)
    y = F.gelu(F.linear(y, w["mlp.fc1.weight"], w["mlp.fc1.bias"]))  # (count, inner)
    y = F.linear(y, w["mlp.fc2.weight"], w["mlp.fc2.bias"])  # (count, wide)
    return x + y * w.get("ls2.scale_factor", 1.0)  # (count, wide)


def see(image: np.ndarray, weights: dict[str, Tensor], config: dict) -> Tensor:
    """Return an image uint8 [h, w, 3] as embeddings for the language model: both towers, then the projector."""
    from PIL import Image

    side = config["image_sizes"][0]
    if image.shape[:2] != (side, side):
        image = np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC))
    pixels = torch.tensor(image).permute(2, 0, 1) / 255  # (3, side, side)
    features = []
    for prefix, normalization in zip(TOWERS, config["pixels"], strict=True):
        mean, std = (torch.tensor(normalization[name])[:, None, None] for name in ("mean", "std"))
        w = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        features.append(tower((pixels - mean) / std, w))
    x = torch.cat(features, dim=1)  # (patches, both)
    for layer in ("projector.fc1", "projector.fc2", "projector.fc3"):
        x = F.linear(x, weights[layer + ".weight"], weights[layer + ".bias"])
        x = x if layer == "projector.fc3" else F.gelu(x)
    return x  # (patches, hidden)


# --- 3. the language model (Llama 2) ----------------------------------------------------------------------------
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x over its root mean square: layer normalization without the mean."""
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight  # (tokens, hidden)


def rotate(x: Tensor) -> Tensor:
    """Return x [heads, tokens, head_dim], with each pair (i, i + head_dim / 2) rotated in proportion to position."""
    half = x.shape[-1] // 2
    speed = 10000.0 ** (-torch.arange(half) / half)  # (half)
    angle = torch.arange(x.shape[1])[:, None] * speed  # (tokens, half)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()), dim=-1)


def llama_block(x: Tensor, w: dict[str, Tensor], heads: int, eps: float) -> Tensor:
    """Return tokens after causal self-attention and the feed-forward layers."""
    y = rms_norm(x, w["input_layernorm.weight"], eps)  # (tokens, hidden)
    q, k, v = (
        F.linear(y, w[f"self_attn.{name}_proj.weight"]).view(len(x), heads, -1).transpose(0, 1) for name in "qkv"
    )
    mask = torch.tril(torch.ones(len(x), len(x)))  # (tokens, tokens)
    y = attention(rotate(q), rotate(k), v, mask).transpose(0, 1).flatten(1)  # (tokens, hidden)
    x = x + F.linear(y, w["self_attn.o_proj.weight"])  # (tokens, hidden)
    y = rms_norm(x, w["post_attention_layernorm.weight"], eps)  # (tokens, hidden)
    y = F.silu(F.linear(y, w["mlp.gate_proj.weight"])) * F.linear(y, w["mlp.up_proj.weight"])  # (tokens, inner)
    return x + F.linear(y, w["mlp.down_proj.weight"])  # (tokens, hidden)


def next_token_scores(x: Tensor, weights: dict[str, Tensor], config: dict) -> Tensor:
    """Return the scores of the next token after the embeddings x [tokens, hidden]."""
    text = config["text_config"]
    eps = text.get("rms_norm_eps", 1e-6)
    for number in range(text.get("num_hidden_layers", 32)):
        at = f"language_model.model.layers.{number}."
        block = {name.removeprefix(at): value for name, value in weights.items() if name.startswith(at)}
        x = llama_block(x, block, text.get("num_attention_heads", 32), eps)  # (tokens, hidden)
    x = rms_norm(x, weights["language_model.model.norm.weight"], eps)  # (tokens, hidden)
    return F.linear(x[-1], weights["language_model.lm_head.weight"])  # (vocabulary)


@torch.no_grad()
def seven_tokens(image: np.ndarray, ids: list[int], weights: dict[str, Tensor], config: dict) -> list[int]:
    """Return the tokens of an action, decoded greedily; the image comes after the prompt's first token."""
    image_tokens, embed = see(image, weights, config), weights["language_model.model.embed_tokens.weight"]
    tokens: list[int] = []
    while len(tokens) < 7:
        x = torch.cat((embed[ids[:1]], image_tokens, embed[[*ids[1:], *tokens]]))  # one row more each time
        tokens.append(int(next_token_scores(x, weights, config).argmax()))
    return tokens


# --- 4. tokens to numbers ---------------------------------------------------------------------------------------
def action_bins(tokens: np.ndarray, vocabulary: int = 32000, bins: int = 256) -> np.ndarray:
    """Return numbers in (-1, 1): the vocabulary's last 256 tokens are bins; the highest token is the lowest bin.

    256 edges enclose 255 intervals, whose centres are the values, so the two lowest tokens mean the same.
    """
    edges = np.linspace(-1.0, 1.0, bins)
    centres = (edges[:-1] + edges[1:]) / 2
    return centres[np.clip(vocabulary - tokens - 1, 0, bins - 2)]


def unnormalise(values: np.ndarray, q01: np.ndarray, q99: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return [-1, 1] stretched to q01 … q99 of the demonstrations; unchanged where the mask is false."""
    return np.where(mask, 0.5 * (values + 1) * (q99 - q01) + q01, values)


def gripper_flip(action: np.ndarray) -> np.ndarray:
    """Return the action in LIBERO's convention: the model has 1 open, 0 closed; LIBERO -1 open, +1 closed."""
    flipped = action.copy()
    flipped[..., 6] = -np.sign(2 * action[..., 6] - 1)
    return flipped


def action_of(
    image: np.ndarray, instruction: str, unnorm_key: str, directory: Path, weights: dict[str, Tensor], config: dict
) -> np.ndarray:
    """Return the action: three numbers for position, three for rotation, one for the gripper."""
    tokens = seven_tokens(image, prompt_ids(instruction, directory), weights, config)
    vocabulary = config["text_config"]["vocab_size"] - config["pad_to_multiple_of"]
    values = action_bins(np.array(tokens), vocabulary, config["n_action_bins"])  # (7)
    statistics = config["norm_stats"][unnorm_key]["action"]
    q01, q99, mask = (np.array(statistics[name]) for name in ("q01", "q99", "mask"))
    return unnormalise(values, q01, q99, mask)  # (7)


if __name__ == "__main__":
    image = np.random.RandomState(0).randint(0, 256, (224, 224, 3), dtype=np.uint8)
    directory = Path(sys.argv[1])
    instruction, key = "put the bowl on the stove", "libero_goal_no_noops"
    action = action_of(image, instruction, key, directory, *read_checkpoint(directory))
    print("the model's action:", action.round(3))
    print("for LIBERO:", gripper_flip(action).round(3))
