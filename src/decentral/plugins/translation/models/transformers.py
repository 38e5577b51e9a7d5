"""Encoder-decoder Transformers for translation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.data.dataset import DataDescription
from decentral.errors import ConfigError
from decentral.models.model import Model
from decentral.models.text import check_heads
from decentral.plugins.translation.data.parallel import SentencePairs
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import nn


class TranslationModel(Model):
    """An encoder-decoder Transformer for pairs of sentences."""

    takes: ClassVar[type[DataDescription]] = SentencePairs
    dim: int
    layers: int
    heads: int
    hidden: int
    dropout: float

    def multiplications(self, data: SentencePairs) -> float:
        """Return the multiplications for a pair with the usual number of tokens on each side: one for each weight and
        token, and the logits."""
        dim, hidden = self.dim, self.hidden
        encoder, decoder = 4 * dim**2 + 2 * dim * hidden, 8 * dim**2 + 2 * dim * hidden
        return data.usual * (self.layers * (encoder + decoder) + dim * data.vocabulary)

    def build(self, data: SentencePairs) -> nn.Module:
        """Return the network of `networks.py`: `Sentences` -> logits [B, T, vocabulary]."""
        from decentral.plugins.translation.networks import EncoderDecoder

        return EncoderDecoder(data.vocabulary, self.dim, self.heads, self.hidden, self.layers, self.dropout)


@dataclass
class TransformerSmall(TranslationModel):
    """A small encoder-decoder Transformer for translation: two layers on each side, 128 numbers per token.

    Pre-norm, one matrix for both embeddings and the logits, see `networks.py` of this plug-in. model.dim=256
    model.layers=3 model.hidden=1024 is the larger end of what two cores train.

    dim      model dimension
    layers   number of layers of the encoder, and of the decoder
    heads    number of heads of each attention, which divides dim
    hidden   width of the feed-forward layer
    dropout  dropout on embeddings, and on the output of each sublayer
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
            raise ConfigError(f"model.dim={self.dim} is odd: use an even number, half sines and half cosines.")


@dataclass
class TransformerBase(TranslationModel):
    """The Transformer's base size, for translation: 61,362,176 parameters with a vocabulary of 33,708.

    Six layers on each side, 512 numbers per token, 8 heads, 2048 feed-forward units.

    Vaswani et al., NeurIPS 2017, table 3. With the 33,708 tokens of MLPerf's joint vocabulary (data.vocab_size=33708)
    it has the WAGMA paper's 61,362,176 parameters.

    dropout      dropout on embeddings, and on the output of each sublayer
    """

    name: str = "transformer_base"
    dim = 512
    layers = 6
    heads = 8
    hidden = 2048
    dropout: float = setting(0.1, at_least=0, below=1)
