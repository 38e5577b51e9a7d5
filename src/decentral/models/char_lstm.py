"""A recurrent network that continues a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.models.model import LanguageModel
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import nn

    from decentral.data.description import NextTokens


@dataclass
class CharLSTM(LanguageModel):
    """Embeddings, an LSTM and a linear layer, for any tokens; every window begins with a state of zeros.

    With dim=8, hidden=256 and layers=2 it is the network of McMahan et al., AISTATS 2017 (arXiv:1602.05629).

    dim      numbers for each token
    hidden   numbers in the state of a layer
    layers   how many are stacked
    """

    name: str = "char_lstm"
    dim: int = setting(32, at_least=1)
    hidden: int = setting(128, at_least=1)
    layers: int = setting(1, at_least=1)

    def multiplications(self, data: NextTokens) -> float:
        """4 h (d + h) for each token in the first layer, 8 h^2 in the others, and those of the outputs."""
        first, others = 4 * self.hidden * (self.dim + self.hidden), 8 * self.hidden**2 * (self.layers - 1)
        return data.usual * (first + others + self.hidden * data.vocabulary)

    def build(self, data: NextTokens) -> nn.Module:
        """Tokens [B, L] -> logits [B, L, vocabulary]."""
        from decentral.models.layers.transformer import Recurrent

        return Recurrent(data.vocabulary, self.dim, self.hidden, self.layers)
