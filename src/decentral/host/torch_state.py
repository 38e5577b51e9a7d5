"""State of torch and of malloc that a process shares with its caller, or one thread with another."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec

if TYPE_CHECKING:
    import torch


_THREADS = "OMP_NUM_THREADS"
_TURN = threading.RLock()
"""Held by the thread that uses torch's global state."""


@contextmanager
def in_turn() -> Iterator[None]:
    """While entered, other threads wait, and say so: torch's generators and defaults belong to the whole process."""
    if not _TURN.acquire(blocking=False):
        print(
            "decentral: this thread waits for another one, which trains or loads a model.", file=sys.stderr, flush=True
        )
        _TURN.acquire()
    try:
        yield
    finally:
        _TURN.release()


@contextmanager
def left_as_found() -> Iterator[None]:
    """While entered, torch computes as it does by default: in float32, on the CPU, with gradients, without autocast.

    Afterwards generators, default dtype and device, gradient mode and threads are those of the caller, also after an
    exception. One thread is inside at a time.
    """
    with in_turn(), _with_defaults():
        yield


@contextmanager
def _with_defaults() -> Iterator[None]:
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


P = ParamSpec("P")


def on_the_same_gpu(work: Callable[P, object]) -> Callable[P, None]:
    """`work`, to be carried out in another thread, on the GPU that is the current one here.

    The current GPU belongs to a thread, and is the first one in a new one: what is recorded there, or opened, would be
    on a GPU that another process has. (Not run with several GPUs.)
    """
    import torch

    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    @wraps(work)
    def carried_out(*arguments: P.args, **named: P.kwargs) -> None:
        if device is not None:
            torch.cuda.set_device(device)
        work(*arguments, **named)

    return carried_out
