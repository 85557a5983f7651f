"""The smoke test of the course's environment; images/common/selftest.py runs it."""

from __future__ import annotations

from images.common.selftest import check_imports, expect

MODULES = (
    "torchvision", "torchaudio", "torchmetrics.text", "tokenizers", "datasets", "sklearn.datasets", "spacy",
    "matplotlib.pyplot", "tensorboard.main", "torch.utils.tensorboard", "jupyterlab", "jupyter_server", "ipykernel",
    "ipywidgets", "tqdm", "pyarrow.parquet", "av", "h5py",
)  # fmt: skip


def check_transformer() -> str:
    """Check that three steps of the course's own Transformer lower its loss, and that its services can be imported."""
    import torch

    check_imports(("vla_notebooks.__main__", "services.ws_mdl.tensorboard"))
    from services.ws_mdl.transformer.model import build_transformer

    torch.manual_seed(0)
    model = build_transformer(50, 60, 7, 7, d_model=32, N=1, h=4, d_ff=64)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    mask, tokens, losses = torch.ones(1, 1, 1, 7, dtype=torch.bool), torch.arange(7)[None], []
    for _ in range(3):
        loss = model.project(model.decode(model.encode(tokens, mask), mask, tokens, mask)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    expect(losses[2] < losses[0], f"three steps' losses are {losses}")
    return f"three steps: loss {losses[0]:.3f} to {losses[2]:.3f}"


SERVICES = {"transformer": check_transformer}
