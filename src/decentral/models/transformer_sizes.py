"""What Transformers of any kind have in common, without torch."""

from __future__ import annotations

from decentral.errors import ConfigError


def check_heads(dim: int, heads: int) -> None:
    """Raise ConfigError unless the heads can share the dimensions."""
    if dim % heads:
        raise ConfigError(f"model.dim={dim} cannot be shared by model.heads={heads}: choose a multiple of {heads}.")


def transformer_multiplications(length: float, dim: int, layers: int, hidden: int) -> float:
    """Of a forward pass for a sequence: L d (4 d + 2 h) with weights and 2 L^2 d of the attention, in each layer."""
    return layers * (length * dim * (4 * dim + 2 * hidden) + 2 * length**2 * dim)
