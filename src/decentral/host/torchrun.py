"""Whether this process is one of several that torchrun started, and which."""

from __future__ import annotations

import os
from typing import NamedTuple

from decentral.errors import ConfigError


def under_torchrun() -> bool:
    """Whether torchrun (or another launcher with its conventions) started this process."""
    return all(key in os.environ for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


class Among(NamedTuple):
    """Which of how many processes this is."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    attempt: int


def place() -> Among:
    """What torchrun's variables say. Raises ConfigError where they make no sense."""
    size, rank = _number("WORLD_SIZE", 1), _number("RANK", 0)
    if rank >= size:
        raise ConfigError(f"RANK={rank} is out of range with WORLD_SIZE={size}: ranks are 0 to {size - 1}.")
    _number("MASTER_PORT", 1, most=65535)
    return Among(
        rank,
        size,
        _number("LOCAL_RANK", 0, otherwise=rank),
        _number("LOCAL_WORLD_SIZE", 1, otherwise=size),
        _number("TORCHELASTIC_RESTART_COUNT", 0, otherwise=0),
    )


def _number(name: str, least: int, most: int = 2**31 - 1, otherwise: int = 0) -> int:
    text = os.environ.get(name, str(otherwise))
    if not (text.isdecimal() and least <= int(text) <= most):
        raise ConfigError(
            f"{name}={text} is invalid: torchrun, or another launcher of this process, must set it to a whole number "
            f"from {least} to {most}."
        )
    return int(text)
