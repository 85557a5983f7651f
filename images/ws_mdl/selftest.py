"""Does this environment do what the course needs? A part of its image's build; see images/common/selftest.py."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from images.common.selftest import check_attention, check_imports, check_torch, expect, one_thread, run

MODULES = (
    "torchvision", "torchaudio", "torchmetrics.text", "tokenizers", "datasets", "sklearn.datasets", "spacy",
    "matplotlib.pyplot", "tensorboard.main", "jupyterlab", "jupyter_server", "ipykernel", "ipywidgets", "tqdm",
    "pyarrow.parquet", "av", "h5py",
)  # fmt: skip


def check_training() -> str:
    """Checks that a training step changes weights, is written for TensorBoard, and can be saved and loaded."""
    import torch
    from torch.utils.tensorboard import SummaryWriter

    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batch = torch.randn(4, 8, 32)
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        with SummaryWriter(folder) as board:
            for step in range(3):
                loss = (model(batch) - 1).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                board.add_scalar("loss", loss.item(), step)
                losses.append(loss.item())
        torch.save(model.state_dict(), Path(folder) / "weights.pt")
        model.load_state_dict(torch.load(Path(folder) / "weights.pt", weights_only=True))
        events = list(Path(folder).glob("events.*"))
    expect(losses[2] < losses[0] and len(events) == 1, f"three steps' losses are {losses}, {len(events)} event files")
    return f"three steps: loss {losses[0]:.3f} to {losses[2]:.3f}"


def check_transformer() -> str:
    """Checks one step of the course's own Transformer, and that its services can be imported."""
    import torch

    check_imports(("vla_notebooks.__main__", "services.ws_mdl.tensorboard"))
    from services.ws_mdl.transformer.model import build_transformer

    model = build_transformer(50, 60, 7, 7, d_model=32, N=1, h=4, d_ff=64)
    mask = torch.ones(1, 1, 1, 7, dtype=torch.bool)
    source, target = torch.arange(7)[None], torch.arange(7)[None]
    memory = model.encode(source, mask)
    loss = model.project(model.decode(memory, mask, target, mask)).square().mean()
    loss.backward()
    grads = [p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters()]
    expect(all(grads), f"{grads.count(False)} of {len(grads)} parameters have no finite gradient")
    return f"a step of {sum(p.numel() for p in model.parameters())} weights"


if __name__ == "__main__":
    one_thread()
    dependencies = {
        "torch": lambda: check_torch("ws_mdl", "2.6.0", "12.4"),
        "attention": check_attention,
        "imports": lambda: check_imports(MODULES),
        "training": check_training,
    }
    sys.exit(run("ws_mdl", dependencies, {"transformer": check_transformer}))
