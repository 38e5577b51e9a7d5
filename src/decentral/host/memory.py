"""How much memory this machine has, to refuse what cannot fit before it is begun."""

from __future__ import annotations

import os

from decentral.errors import ConfigError


def memory_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def refuse_if_too_large(setting: str, num_bytes: float) -> None:
    """Raise ConfigError if `setting`, as key=value, needs more memory than there is in this machine."""
    there = memory_bytes()
    if num_bytes > there:
        raise ConfigError(
            f"{setting} is too large: its numbers alone are {num_bytes / 1e9:,.0f} GB, and this machine has "
            f"{there / 1e9:,.0f} GB of memory."
        )
