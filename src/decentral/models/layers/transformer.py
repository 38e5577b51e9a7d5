"""Networks for texts: Transformers and an LSTM."""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decentral.data.dataset import PADDING


class Block(nn.Module):
    """A Transformer block: x <- x + attention(norm(x)), then x <- x + W2 gelu(W1 norm(x)): [B, L, d] -> [B, L, d]."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.hidden_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.queries_keys_values, self.joined = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.hidden, self.output = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None, causal: bool, turns: Tensor | None = None) -> Tensor:
        """Compute the block. `mask` [B, 1, 1, L] marks the tokens to attend to; `causal`: only previous tokens and the
        token itself; `turns`: see `rotated`."""
        together = self.queries_keys_values(self.attention_norm(x))
        q, k, v = together.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if turns is not None:
            q, k = rotated(q, turns), rotated(k, turns)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        x = x + self.dropout(self.joined(attended.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.output(F.gelu(self.hidden(self.hidden_norm(x)))))


class TextEncoder(nn.Module):
    """A network from tokens [B, L] to logits [B, num_classes]; see model=text_transformer."""

    def __init__(
        self,
        vocabulary: int,
        longest: int,
        num_classes: int,
        dim: int,
        layers: int,
        heads: int,
        hidden: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.tokens, self.places = _embeddings(vocabulary, longest, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, hidden, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [B, num_classes] for tokens [B, L]."""
        there = tokens != PADDING
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, there[:, None, None], causal=False)
        weights = there.to(x.dtype)[..., None]
        return self.head(self.norm((x * weights).sum(1) / weights.sum(1)))


class NextToken(nn.Module):
    """A network from tokens [B, L] to logits [B, L, vocabulary] of the next tokens; see model=char_transformer.

    Padding is at the end, where no token attends to it.
    """

    def __init__(
        self, vocabulary: int, longest: int, dim: int, layers: int, heads: int, hidden: int, dropout: float
    ) -> None:
        super().__init__()
        self.tokens, self.places = _embeddings(vocabulary, longest, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, hidden, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [B, L, vocabulary] for tokens [B, L]."""
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, None, causal=True)
        return self.head(self.norm(x))


def rotated(x: Tensor, turns: Tensor) -> Tensor:
    """Return queries or keys [B, heads, L, d] with the pairs (x_j, x_{j + d/2}) rotated, for `turns` [2, L, d/2], the
    cosines and sines of the angles."""
    (cos, sin), (a, b) = turns.to(x.dtype), x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class GPT(nn.Module):
    """A network from tokens [B, L] to logits [B, L, vocabulary] of the next tokens; see model=gpt.

    The embedding is also the output layer. It is the last matrix: optimizers that treat the head separately find it.
    """

    turns: Tensor

    def __init__(self, vocabulary: int, longest: int, dim: int, layers: int, heads: int, rotary: bool) -> None:
        super().__init__()
        self.places = None if rotary else nn.Embedding(longest, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, 4 * dim, 0.0) for _ in range(layers))
        self.norm, self.tokens = nn.LayerNorm(dim), nn.Embedding(vocabulary, dim)
        rates = 10_000.0 ** (-torch.arange(0, dim // heads, 2, device="cpu", dtype=torch.float64) * heads / dim)
        angles = torch.arange(longest, device="cpu", dtype=torch.float64)[:, None] * rates
        turns = torch.stack([angles.cos(), angles.sin()]).float()
        self.register_buffer("turns", turns if rotary else None, persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                residual = name.endswith(("joined.weight", "output.weight"))
                nn.init.normal_(parameter, std=0.02 / sqrt(2 * layers) if residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [B, L, vocabulary] for tokens [B, L]."""
        x, length = self.tokens(tokens), tokens.shape[1]
        if self.places is not None:
            x = x + self.places.weight[:length]
        for block in self.blocks:
            x = block(x, None, True, None if self.places is not None else self.turns[:, :length])
        return F.linear(self.norm(x), self.tokens.weight)


class Recurrent(nn.Module):
    """A network from tokens [B, L] to logits [B, L, vocabulary], by an LSTM; see model=char_lstm."""

    def __init__(self, vocabulary: int, dim: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.lstm = nn.LSTM(dim, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [B, L, vocabulary] for tokens [B, L]; every sequence begins with a state of zeros."""
        return self.head(self.lstm(self.tokens(tokens))[0])


def _embeddings(vocabulary: int, longest: int, dim: int) -> tuple[nn.Embedding, nn.Embedding]:
    """Return embeddings of tokens and of positions, initially N(0, 0.02^2), as in GPT-2 (Radford et al., 2019)."""
    tokens, places = nn.Embedding(vocabulary, dim), nn.Embedding(longest, dim)
    for embedding in (tokens, places):
        nn.init.normal_(embedding.weight, std=0.02)
    return tokens, places


class WithoutPadding(nn.Module):
    """A wrapper of a model: tokens [B, L] -> logits [B, num_classes], with a padding mask for the model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [B, num_classes] for tokens [B, L]."""
        return self.model(input_ids=tokens, attention_mask=tokens != PADDING).logits
