"""Threads that compute where the one that starts them does."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

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
