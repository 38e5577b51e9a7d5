"""What networks for translation have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.data.description import DataDescription, SentencePairs
from decentral.models.model import Model

if TYPE_CHECKING:
    from torch import nn


class Sizes(NamedTuple):
    """Of an encoder-decoder Transformer."""

    dim: int
    heads: int
    hidden: int
    layers: int


class TranslationModel(Model):
    """An encoder-decoder Transformer for pairs of sentences."""

    takes: ClassVar[type[DataDescription]] = SentencePairs
    dropout: float

    @property
    @abstractmethod
    def sizes(self) -> Sizes:
        """Of the encoder; the decoder has as many layers."""

    def multiplications(self, data: SentencePairs) -> float:
        """Of a pair with the usual number of tokens on each side: one for each weight and token, and the logits."""
        dim, _, hidden, layers = self.sizes
        encoder, decoder = 4 * dim**2 + 2 * dim * hidden, 8 * dim**2 + 2 * dim * hidden
        return data.usual * (layers * (encoder + decoder) + dim * data.vocabulary)

    def build(self, data: SentencePairs) -> nn.Module:
        """See `models.layers.encoder_decoder`: `Sentences` -> logits [B, T, vocabulary]."""
        from decentral.models.layers.encoder_decoder import EncoderDecoder

        return EncoderDecoder(data.vocabulary, *self.sizes, self.dropout)
