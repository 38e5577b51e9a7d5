"""The Transformer of the papers."""

from __future__ import annotations

from dataclasses import dataclass

from decentral.models.translation import Sizes, TranslationModel
from decentral.settings import setting


@dataclass
class TransformerBase(TranslationModel):
    """The Transformer's base size: six layers on each side, 512 numbers a token, 8 heads, 2048 feed-forward units.

    Vaswani et al., NeurIPS 2017, table 3. With the 33,708 tokens of MLPerf's joint vocabulary (data.vocab_size=33708)
    it has the WAGMA paper's 61,362,176 parameters.

    dropout      on embeddings, and on what each layer adds
    """

    name: str = "transformer_base"
    dropout: float = setting(0.1, at_least=0, below=1)

    @property
    def sizes(self) -> Sizes:
        """The paper's."""
        return Sizes(dim=512, heads=8, hidden=2048, layers=6)
