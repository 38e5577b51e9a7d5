"""What Transformers of any kind have in common, without torch."""

from __future__ import annotations

from decentral.errors import ConfigError, check_at_least, check_range


def check_sizes(dim: int, layers: int, heads: int, hidden: int, dropout: float) -> None:
    """Raise ConfigError unless such a Transformer exists."""
    for key, value in (("dim", dim), ("layers", layers), ("heads", heads), ("hidden", hidden)):
        check_at_least(f"model.{key}", value)
    check_range("model.dropout", dropout, 0.0, 1.0)
    if dim % heads:
        raise ConfigError(f"model.dim={dim} cannot be shared by model.heads={heads}: choose a multiple of {heads}.")


def transformer_multiplications(length: float, dim: int, layers: int, hidden: int) -> float:
    """Of a forward pass for a sequence: L d (4 d + 2 h) with weights and 2 L^2 d of the attention, in each layer."""
    return layers * (length * dim * (4 * dim + 2 * hidden) + 2 * length**2 * dim)
