"""A small Transformer that continues a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.models.model import LanguageModel
from decentral.models.transformer_sizes import check_heads, transformer_multiplications
from decentral.settings import setting

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
    dim: int = setting(64, at_least=1)
    layers: int = setting(2, at_least=1)
    heads: int = setting(4, at_least=1)
    hidden: int = setting(128, at_least=1)
    dropout: float = setting(0.0, at_least=0, below=1)

    def __post_init__(self) -> None:
        check_heads(self.dim, self.heads)

    def multiplications(self, data: NextTokens) -> float:
        """Of the layers, and of the outputs."""
        layers = transformer_multiplications(data.usual, self.dim, self.layers, self.hidden)
        return layers + data.usual * self.dim * data.vocabulary

    def build(self, data: NextTokens) -> nn.Module:
        """Tokens [B, L] -> logits [B, L, vocabulary]."""
        from decentral.models.layers.transformer import NextToken

        sizes = self.dim, self.layers, self.heads, self.hidden, self.dropout
        return NextToken(data.vocabulary, data.longest, *sizes)
