"""A small encoder-decoder Transformer."""

from __future__ import annotations

from dataclasses import dataclass

from decentral.errors import ConfigError
from decentral.models.transformer_sizes import check_sizes
from decentral.models.translation import Sizes, TranslationModel


@dataclass
class TransformerSmall(TranslationModel):
    """A small encoder-decoder Transformer for translation: two layers on each side, 128 numbers a token.

    Pre-norm, one matrix for both embeddings and the logits, see `models/layers/encoder_decoder.py`. model.dim=256
    model.layers=3 model.hidden=1024 is the larger end of what two cores train.

    dim      numbers that stand for a token
    layers   of the encoder, and of the decoder
    heads    of each attention: they share the numbers
    hidden   units between the two matrices of a layer
    dropout  on embeddings, and on what each layer adds
    """

    name: str = "transformer_small"
    dim: int = 128
    layers: int = 2
    heads: int = 4
    hidden: int = 512
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_sizes(self.dim, self.layers, self.heads, self.hidden, self.dropout)
        if self.dim % 2:
            raise ConfigError(f"model.dim={self.dim} has to be even: a position is as many sines as cosines.")

    @property
    def sizes(self) -> Sizes:
        """As configured."""
        return Sizes(self.dim, self.heads, self.hidden, self.layers)
