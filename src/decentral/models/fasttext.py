"""A bag of words: mean of embeddings, one linear layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.models.model import TextModel
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import nn

    from decentral.data.description import LabelledTokens


@dataclass
class FastText(TextModel):
    """The mean of the embeddings of a text's tokens, and a linear layer (Joulin et al., EACL 2017, arXiv:1607.01759).

    Embeddings begin uniform in [-1 / dim, 1 / dim], the linear layer as torch has it. Departure: no features of several
    words, and an ordinary softmax instead of a hierarchical one.

    dim   numbers in an embedding
    """

    name: str = "fasttext"
    dim: int = setting(64, at_least=1)

    def multiplications(self, data: LabelledTokens) -> float:
        """One for each number of each embedding, and those of the linear layer."""
        return self.dim * (data.usual + data.num_classes)

    def build(self, data: LabelledTokens) -> nn.Module:
        """Tokens [B, L] -> logits [B, num_classes]."""
        from torch import nn

        from decentral.data.description import PADDING

        embeddings = nn.EmbeddingBag(data.vocabulary, self.dim, mode="mean", padding_idx=PADDING)
        nn.init.uniform_(embeddings.weight, -1 / self.dim, 1 / self.dim)
        return nn.Sequential(embeddings, nn.Linear(self.dim, data.num_classes))
