"""A small Transformer that continues a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.models.model import LanguageModel
from decentral.models.transformer_sizes import check_sizes, transformer_multiplications

if TYPE_CHECKING:
    from torch import nn

    from decentral.data.description import NextTokens


@dataclass
class CharTransformer(LanguageModel):
    """Transformer decoder with layer normalisation before each part, as GPT-2 (Radford et al., 2019), for any tokens.

    As model=text_transformer, but a token looks only at itself and those before it, and every place gets an output.

    dim      numbers for each token
    layers   how often
    heads    of the attention; they share dim
    hidden   numbers between the two products of a layer
    dropout  after attention and the second product, in training
    """

    name: str = "char_transformer"
    dim: int = 64
    layers: int = 2
    heads: int = 4
    hidden: int = 128
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_sizes(self.dim, self.layers, self.heads, self.hidden, self.dropout)

    def multiplications(self, data: NextTokens) -> float:
        """Of the layers, and of the outputs."""
        layers = transformer_multiplications(data.usual, self.dim, self.layers, self.hidden)
        return layers + data.usual * self.dim * data.vocabulary

    def build(self, data: NextTokens) -> nn.Module:
        """Tokens [B, L] -> logits [B, L, vocabulary]."""
        from decentral.models.layers.transformer import NextToken

        sizes = self.dim, self.layers, self.heads, self.hidden, self.dropout
        return NextToken(data.vocabulary, data.longest, *sizes)
