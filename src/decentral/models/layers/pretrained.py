"""Models of the library transformers, as this program calls a model."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from decentral.data.description import PADDING


class WithoutPadding(nn.Module):
    """Tokens [B, L] -> logits [B, num_classes]: the model is told where the padding is."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B, num_classes] for tokens [B, L]."""
        return self.model(input_ids=tokens, attention_mask=tokens != PADDING).logits
