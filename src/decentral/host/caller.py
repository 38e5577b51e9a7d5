"""State that a process shares with its Python caller, left as it was found."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_THREADS = "OMP_NUM_THREADS"


@contextmanager
def left_as_found() -> Iterator[None]:
    """While entered, torch computes as it does by default: in float32, on the CPU, with gradients, without autocast.

    Afterwards generators, default dtype and device, gradient mode and threads are those of the caller, also after an
    exception.
    """
    import torch

    from decentral.randomness import seeded

    threads, told, seed = torch.get_num_threads(), os.environ.get(_THREADS), torch.initial_seed()
    device = torch.get_default_device()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    with (
        seeded(0, "caller"),
        default_dtype(torch.float32),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
    ):
        if device.type != "cpu":
            torch.set_default_device(None)
        inside = torch.get_default_device().type != "cpu"  # of a `with torch.device`, which is not the default
        try:
            with torch.device("cpu") if inside else nullcontext():
                yield
        finally:
            if device.type != "cpu" and not inside:
                torch.set_default_device(device)
            torch.set_num_threads(threads)
            os.environ.pop(_THREADS, None) if told is None else os.environ.update({_THREADS: told})
            if cuda is not None:
                torch.cuda.set_rng_state_all(cuda)
            elif torch.cuda.is_initialized():  # by us: as if it had been with the caller's seed
                torch.cuda.manual_seed_all(seed)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """While entered, torch makes floating-point tensors of this type unless it is told otherwise."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
