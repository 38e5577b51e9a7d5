"""Counter-based randomness: a generator is a pure function of its address (seed, purpose, indices).

Worker 3's batch at step 17 is always the same: in one process or in many, before or after a resume.
Nothing in this package draws from a global, stateful generator.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_AT_ONCE = 64


def _mix(z: int) -> int:
    """The finalizer of SplitMix64 (Steele et al., OOPSLA 2014): a bijection on 64-bit words that scatters every bit."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def address(seed: int, purpose: str, *indices: int) -> int:
    """Return a 63-bit seed for (seed, purpose, indices), for example `address(seed, "batch", worker, epoch)`."""
    return _hashed(seed, purpose, *indices) >> 1


def _hashed(seed: int, purpose: str, *indices: int) -> int:
    """Return the 64-bit state before the last index is mixed in."""
    h = _mix((seed & _MASK) + _GOLDEN & _MASK)
    for word in (zlib.crc32(purpose.encode()), *indices):
        h = _mix((h ^ (word & _MASK)) + _GOLDEN & _MASK)
    return h


def addresses(seed: int, purpose: str, *indices: int) -> Iterator[int]:
    """Yield address(seed, purpose, *indices, t) for t = 0, 1, ..., in a tenth of the time of separate calls."""
    so_far = np.uint64(_hashed(seed, purpose, *indices))
    for block in count():
        t = np.arange(block * _AT_ONCE, (block + 1) * _AT_ONCE, dtype=np.uint64)
        yield from (_mixed(so_far ^ t) >> np.uint64(1)).tolist()


def numpy_generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """Return a numpy generator for this address."""
    return np.random.Generator(np.random.PCG64(address(seed, purpose, *indices)))


def torch_generator(device: torch.device | str, seed: int, purpose: str, *indices: int) -> torch.Generator:
    """Return a torch generator on `device` for this address."""
    import torch

    generator = torch.Generator(device=device)
    generator.manual_seed(address(seed, purpose, *indices))
    return generator


@contextmanager
def seeded(seed: int, purpose: str, *indices: int) -> Iterator[None]:
    """Seed the global generators of torch, numpy and Python at this address; restore them on exit.

    For third-party code, which draws from the global generators.
    """
    import torch

    number = address(seed, purpose, *indices)
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(number)
    np.random.seed(number % 2**32)
    random.seed(number)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def normal(seed: int, purpose: str, *indices: np.ndarray | int) -> np.ndarray:
    """Return a standard normal number for each address: the Box-Muller transform of two numbers of `uniform`."""
    radius = np.sqrt(-2 * np.log1p(-uniform(seed, f"{purpose}: radius", *indices)))
    return radius * np.cos(2 * np.pi * uniform(seed, f"{purpose}: angle", *indices))


def uniform(seed: int, purpose: str, *indices: np.ndarray | int) -> np.ndarray:
    """Return a uniform number in [0, 1) for each address, vectorized over integer arrays that broadcast together.

    For one number per edge (message loss): it depends only on its own address, not on the number or order of draws.
    """
    words = np.broadcast_arrays(*(np.asarray(i, dtype=np.uint64) for i in indices))
    h = np.full(words[0].shape, address(seed, purpose), dtype=np.uint64)
    for word in words:
        h = _mixed(h ^ word)
    return (h >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(words: np.ndarray) -> np.ndarray:
    """Add the constant to each word and return its `_mix`, as uint64."""
    with np.errstate(over="ignore"):
        z = words + np.uint64(_GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
