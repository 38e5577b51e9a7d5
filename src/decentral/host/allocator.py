"""Memory that is freed stays with the process: what a step frees is what the next one needs."""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of glibc's malloc.h
_NEVER = -1
_LARGEST_BYTES = 2**31 - 1  # that mallopt can be told


def keep_freed_memory() -> None:
    """Let malloc keep freed blocks of up to 2 GiB for the next ones of this process, where it is glibc's.

    By itself it gives blocks of 32 MiB and more back to the system at once, and every page (4 kB) of a large temporary
    tensor costs a fault in every step: a tenth of the time of small convolutional networks and of VGG-11. Every process
    that computes calls this, alone or one of several. Someone who has told glibc what to do, by MALLOC_* or
    GLIBC_TUNABLES, knows better.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None:
        return
    mallopt(_TRIM_THRESHOLD, _NEVER)
    if not mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES):  # glibc before 2.35 takes no more than 32 MiB there
        mallopt(_MMAP_MAX, 0)
