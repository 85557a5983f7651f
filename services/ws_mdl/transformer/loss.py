"""The loss of a batch of translations, as a module: so it can be compiled, and shared among several GPUs."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from services.ws_mdl.transformer.model import Transformer


class TranslationLoss(nn.Module):
    """Cross-entropy with label smoothing, summed over the real words of a batch.

    Only their vectors are projected to the vocabulary: the widest layer does nothing for padding.
    """

    def __init__(self, model: Transformer, label_smoothing: float = 0.1) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(
        self, encoder_input: Tensor, decoder_input: Tensor, label: Tensor, encoder_mask: Tensor,
        decoder_mask: Tensor, real: Tensor, smoothing: float | None = None,
    ) -> Tensor:  # fmt: skip
        """Returns the sum as a float32 scalar; the arguments are a `Batch`'s fields, in their order."""
        encoder_output = self.model.encode(encoder_input, encoder_mask)  # (batch, src seq, d_model)
        x = self.model.decode(encoder_output, encoder_mask, decoder_input, decoder_mask)  # (batch, tgt seq, d_model)
        logits = self.model.project(x.flatten(0, 1)[real])  # (real words, vocabulary)
        smoothing = self.label_smoothing if smoothing is None else smoothing
        return F.cross_entropy(logits.float(), label.flatten()[real], label_smoothing=smoothing, reduction="sum")
