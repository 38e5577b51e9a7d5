"""The Transformer of the papers."""

from __future__ import annotations

from dataclasses import dataclass

from decentral.errors import check_range
from decentral.models.translation import Sizes, TranslationModel


@dataclass
class TransformerBase(TranslationModel):
    """The Transformer's base size: six layers on each side, 512 numbers a token, 8 heads, 2048 feed-forward units.

    Vaswani et al., NeurIPS 2017, table 3. With the 33,708 tokens of MLPerf's joint vocabulary (data.vocab_size=33708)
    it has the WAGMA paper's 61,362,176 parameters.

    dropout      on embeddings, and on what each layer adds
    """

    name: str = "transformer_base"
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_range("model.dropout", self.dropout, 0.0, 1.0)

    @property
    def sizes(self) -> Sizes:
        """The paper's."""
        return Sizes(dim=512, heads=8, hidden=2048, layers=6)
