"""Time and memory on whatever device computes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from decentral.jobs.timing.times import Times, in_turn

if TYPE_CHECKING:
    import torch

    from decentral.jobs.timing.group import Stepping


def on_device(works: dict[str, Callable[[], object]], device: torch.device, rounds: int, steps: int) -> Times:
    """Seconds of one call of each, measured over `steps` calls between two waits for the device."""
    import torch

    def whole(work: Callable[[], object]) -> Callable[[], None]:
        def calls() -> None:
            for _ in range(steps):
                work()
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        return calls

    times = in_turn({name: whole(work) for name, work in works.items()}, rounds, clock=time.perf_counter)
    return Times({name: [second / steps for second in seconds] for name, seconds in times.seconds.items()})


def peak_bytes(stepping: Stepping, device: torch.device) -> int | None:
    """The most memory that steps take on the GPU; None elsewhere."""
    import torch

    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    for _ in range(3):
        stepping()
    return torch.cuda.max_memory_allocated(device)


def row_bytes(stepping: Stepping) -> int:
    """What the state takes, and the gradients."""
    import torch
    from torch.utils._pytree import tree_leaves

    tensors = [leaf for leaf in tree_leaves(stepping.run.stepper.state) if isinstance(leaf, torch.Tensor)]
    models = stepping.run.stepper.models
    return sum(tensor.numel() * tensor.element_size() for tensor in [*tensors, models])
