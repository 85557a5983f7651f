"""Files as the course's own programs write them, small: the keys, names and types are theirs, the numbers drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.utils.tensorboard import SummaryWriter

from services.ws_mdl.diffusion.model import ContextUnet
from services.ws_mdl.transformer.model import build_transformer

SENTENCES = {
    "english": ["the door is open", "the light is on", "open the door", "the light and the door"],
    "korean": ["문이 열려 있다", "불이 켜져 있다", "문을 열어라 문을", "불 그리고 문이 있다 불 켜져"],
}
SEQ = 16


def write_all(directory: Path, epochs: tuple[int, ...] = (0, 10, 20, 29)) -> Path:
    """Return a folder as a student of the course has it: Transformer, diffusion, data, curves, and notebooks."""
    write_transformer(directory / "Transformer", epochs)
    write_diffusion(directory / "Diffusion")
    for name in ("L1_Sampling.ipynb", "tformer/train.py", "tokenizer.txt"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("{}" if name.endswith("ipynb") else "text")
    return directory


def write_transformer(directory: Path, epochs: tuple[int, ...]) -> None:
    """Write tokenizers, weights of these epochs, and curves."""
    sizes = [write_tokenizer(directory / f"tokenizer_{language}.json", language) for language in SENTENCES]
    (directory / "weights").mkdir(parents=True)
    for epoch in epochs:
        torch.manual_seed(epoch)
        model = build_transformer(*sizes, SEQ, SEQ, d_model=16, N=1, h=8, d_ff=32)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, eps=1e-9)
        state = {
            "epoch": epoch, "model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict(),
            "global_step": 100 * (epoch + 1),
        }  # fmt: skip
        torch.save(state, directory / "weights" / f"tmodel_{epoch:02d}.pt")
    with SummaryWriter(str(directory / "runs" / "tmodel")) as writer:
        writer.add_scalar("train loss", 4.2, 1)


def write_tokenizer(path: Path, language: str) -> int:
    """Return how many words the tokenizer knows that was written there."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[UNK]", "[PAD]", "[SOS]", "[EOS]"]
    tokenizer.train_from_iterator(SENTENCES[language], trainers.WordLevelTrainer(special_tokens=special))
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return tokenizer.get_vocab_size()


def write_diffusion(directory: Path) -> None:
    """Write state dicts without the shortcut that the course never stored, and the sprites with their labels."""
    (directory / "weights").mkdir(parents=True)
    names = {"model_0": 3, "model_4": 3, "model_31": 3, "L3_context_model_trained": 3, "L2_model_mnist_4": 1}
    for number, (name, channels) in enumerate(names.items()):
        torch.manual_seed(number)
        height = 28 if channels == 1 else 16
        state = ContextUnet(channels, 8, 10 if channels == 1 else 5, height, pool=4).state_dict()
        kept = {key: value for key, value in state.items() if "shortcut" not in key}
        torch.save(kept, directory / "weights" / f"{name}.pth")
    draw = np.random.default_rng(0)
    (directory / "dataset").mkdir()
    np.save(directory / "dataset" / "sprites_1788_16x16.npy", draw.integers(0, 256, (40, 16, 16, 3), np.uint8))
    np.save(directory / "dataset" / "sprite_labels_nc_1788_16x16.npy", np.eye(5)[draw.integers(0, 5, 40)])
