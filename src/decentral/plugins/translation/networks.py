"""An encoder-decoder Transformer that writes a sentence token by token."""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decentral.plugins.translation.data.parallel import PAD, Sentences


class Written(NamedTuple):
    """The decoder's cache during token-by-token decoding."""

    source_mask: Tensor  # [B, 1, 1, S]: True at tokens
    source: list[tuple[Tensor, Tensor]]  # of each layer: keys and values [B, H, S, d/H] of the source
    target: list[tuple[Tensor, Tensor]]  # of each layer: keys and values [B, H, t, d/H] of the decoded tokens

    def rows(self, chosen: Tensor) -> Written:
        """Return the cache of selected sentences, LongTensor [b], possibly repeated."""
        source, target = ([(k[chosen], v[chosen]) for k, v in kept] for kept in (self.source, self.target))
        return Written(self.source_mask[chosen], source, target)


class EncoderDecoder(nn.Module):
    """The Transformer (Vaswani et al., NeurIPS 2017, arXiv:1706.03762), as MLPerf's reference for translation has it.

        x <- x + dropout(f(LayerNorm(x)))        around every attention and feed-forward layer; LayerNorm at both ends

    The norms come first ("pre-norm"), the four projections of an attention have no biases, positions are sines, and one
    matrix E [vocabulary, dim] embeds source and target (times sqrt(dim)) and gives the logits E x. With dim 512,
    2048 feed-forward units, 6 + 6 layers and 33,708 tokens that is the WAGMA paper's 61,362,176 parameters.

    E starts at N(0, 1 / dim), other matrices at Glorot's uniform distribution, biases at 0.
    """

    def __init__(self, vocabulary: int, dim: int, heads: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        assert dim % heads == 0 and dim % 2 == 0
        self.embedding = nn.Embedding(vocabulary, dim)
        self.encoder = nn.ModuleList(Layer(dim, heads, hidden, dropout, cross=False) for _ in range(layers))
        self.decoder = nn.ModuleList(Layer(dim, heads, hidden, dropout, cross=True) for _ in range(layers))
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.embedding.weight, std=dim**-0.5)
        self._positions = torch.empty(0)

    def forward(self, sentences: Sentences) -> Tensor:
        """Return the logits [B, T, vocabulary] of the token after each target token, given the source."""
        memory, mask = self.encode(sentences.source)
        x = self._embedded(sentences.target, 0)
        for layer, known in zip(self.decoder, self._known(memory), strict=True):
            x = layer(x, None, (known, mask))
        return F.linear(self.decoder_norm(x), self.embedding.weight)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Encode the source [B, S] for the decoder: [B, S, dim], and the mask of its tokens: bool [B, 1, 1, S]."""
        mask = (source != PAD)[:, None, None]
        x = self._embedded(source, 0)
        for layer in self.encoder:
            x = layer(x, mask, None)
        return self.encoder_norm(x), mask

    def begin(self, source: Tensor) -> Written:
        """Return the cache for translations of source [B, S], without any written token."""
        memory, mask = self.encode(source)
        known = self._known(memory)
        nothing = [(k[:, :, :0], v[:, :, :0]) for k, v in known]
        return Written(mask, known, nothing)

    def write(self, tokens: Tensor, written: Written) -> tuple[Tensor, Written]:
        """Add a token [B] to each translation. Return the logits [B, vocabulary] of the next token, and the new
        cache."""
        x = self._embedded(tokens[:, None], written.target[0][0].shape[2])
        grown = []
        for layer, source, before in zip(self.decoder, written.source, written.target, strict=True):
            x, now = cast("Layer", layer).grow(x, before, (source, written.source_mask))
            grown.append(now)
        return F.linear(self.decoder_norm(x[:, 0]), self.embedding.weight), written._replace(target=grown)

    def _known(self, memory: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the source's keys and values for each decoder layer."""
        return [cast("Layer", layer).source.keys_values(memory) for layer in self.decoder]

    def _embedded(self, tokens: Tensor, first: int) -> Tensor:
        """Embed tokens [B, T] at positions first, first + 1, ...: [B, T, dim]."""
        last, dim = first + tokens.shape[1], self.embedding.embedding_dim
        if len(self._positions) < last or self._positions.device != tokens.device:
            self._positions = sines(max(64, 2 * last), dim).to(tokens.device)
        places = self._positions[first:last].to(self.embedding.weight.dtype)
        return self.dropout(self.embedding(tokens) * math.sqrt(dim) + places)


class Layer(nn.Module):
    """A layer of the encoder, or with `cross` of the decoder, which also attends to the source."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float, *, cross: bool) -> None:
        super().__init__()
        self.own_norm, self.own = nn.LayerNorm(dim), Attention(dim, heads)
        if cross:
            self.source_norm, self.source = nn.LayerNorm(dim), Attention(dim, heads)
        self.norm = nn.LayerNorm(dim)
        self.inner, self.outer = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None, source: tuple[tuple[Tensor, Tensor], Tensor] | None) -> Tensor:
        """Return the layer's output for x [B, T, dim], same shape. It attends where `mask` is True; without a mask,
        causally."""
        h = self.own_norm(x)
        x = x + self.dropout(self.own(h, self.own.keys_values(h), mask, causal=mask is None))
        return self._rest(x, source)

    def grow(
        self, x: Tensor, before: tuple[Tensor, Tensor], source: tuple[tuple[Tensor, Tensor], Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Add one token x [B, 1, dim] after those with cached keys and values. Return its output, and the extended
        cache."""
        h = self.own_norm(x)
        k, v = (torch.cat(pair, dim=2) for pair in zip(before, self.own.keys_values(h), strict=True))
        x = x + self.dropout(self.own(h, (k, v), None, causal=False))
        return self._rest(x, source), (k, v)

    def _rest(self, x: Tensor, source: tuple[tuple[Tensor, Tensor], Tensor] | None) -> Tensor:
        if source is not None:
            x = x + self.dropout(self.source(self.source_norm(x), source[0], source[1], causal=False))
        return x + self.dropout(self.outer(F.relu(self.inner(self.norm(x)))))


class Attention(nn.Module):
    """Attention with several heads: softmax(Q K^T / sqrt(d/H)) V, without biases."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.out = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.key_value = nn.Linear(dim, 2 * dim, bias=False)
        for weight in (self.query.weight, self.out.weight, *self.key_value.weight.chunk(2)):
            nn.init.xavier_uniform_(weight)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of x [B, S, dim]: [B, H, S, d/H] each."""
        k, v = self.key_value(x).chunk(2, dim=-1)
        return self._heads(k), self._heads(v)

    def forward(self, x: Tensor, known: tuple[Tensor, Tensor], mask: Tensor | None, *, causal: bool) -> Tensor:
        """Attend from x [B, T, dim] to these keys and values, where mask [B, 1, 1, S] is True: [B, T, dim]."""
        seen = F.scaled_dot_product_attention(self._heads(self.query(x)), *known, attn_mask=mask, is_causal=causal)
        return self.out(seen.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def sines(places: int, dim: int) -> Tensor:
    """Return positions [places, dim]: sin(p / 10000^(2i / dim)) in the first half of the columns, cosines in the
    other."""
    rates = 10_000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(places, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)
