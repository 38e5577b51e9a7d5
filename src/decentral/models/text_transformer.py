"""A small Transformer that reads a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.models.model import TextModel
from decentral.models.transformer_sizes import check_heads, transformer_multiplications
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import nn

    from decentral.data.description import LabelledTokens


@dataclass
class TextTransformer(TextModel):
    """Transformer encoder with layer normalisation before each part, as in Xiong et al., ICML 2020 (arXiv:2002.04745).

    Embeddings of tokens and of their places are added; `layers` times x <- x + attention(norm(x)), x <- x + W2 gelu(W1
    norm(x)); the mean over the tokens of the text, normalised, goes through a linear layer. Padding takes no part.

    dim      numbers for each token
    layers   how often
    heads    of the attention; they share dim
    hidden   numbers between W1 and W2
    dropout  after attention and W2, in training
    """

    name: str = "text_transformer"
    dim: int = setting(64, at_least=1)
    layers: int = setting(2, at_least=1)
    heads: int = setting(4, at_least=1)
    hidden: int = setting(128, at_least=1)
    dropout: float = setting(0.0, at_least=0, below=1)

    def __post_init__(self) -> None:
        check_heads(self.dim, self.heads)

    def multiplications(self, data: LabelledTokens) -> float:
        """Of the products with weights, and of the attention."""
        return transformer_multiplications(data.usual, self.dim, self.layers, self.hidden)

    def build(self, data: LabelledTokens) -> nn.Module:
        """Tokens [B, L] -> logits [B, num_classes]."""
        from decentral.models.layers.transformer import TextEncoder

        sizes = self.dim, self.layers, self.heads, self.hidden, self.dropout
        return TextEncoder(data.vocabulary, data.longest, data.num_classes, *sizes)
