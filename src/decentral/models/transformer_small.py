"""A small encoder-decoder Transformer."""

from __future__ import annotations

from dataclasses import dataclass

from decentral.errors import ConfigError
from decentral.models.transformer_sizes import check_heads
from decentral.models.translation import Sizes, TranslationModel
from decentral.settings import setting


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
    dim: int = setting(128, at_least=1)
    layers: int = setting(2, at_least=1)
    heads: int = setting(4, at_least=1)
    hidden: int = setting(512, at_least=1)
    dropout: float = setting(0.1, at_least=0, below=1)

    def __post_init__(self) -> None:
        check_heads(self.dim, self.heads)
        if self.dim % 2:
            raise ConfigError(f"model.dim={self.dim} has to be even: a position is as many sines as cosines.")

    @property
    def sizes(self) -> Sizes:
        """As configured."""
        return Sizes(self.dim, self.heads, self.hidden, self.layers)
