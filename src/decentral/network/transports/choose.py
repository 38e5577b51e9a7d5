"""Selection of the transport of a group of processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from decentral.errors import ConfigError
from decentral.network.settings import Carrier, NetworkSettings
from decentral.network.transports.posting import Limits
from decentral.network.transports.shared_memory import SharedMemory, possible
from decentral.network.transports.torch_distributed import TorchDistributed
from decentral.network.transports.transport import Transport


def open_transport(settings: NetworkSettings, layout: Sequence[range], device: torch.device) -> Transport:
    """Open the transport that `network.transport` selects; all processes of the group call this at once.

    `layout` has the workers of each process. Raises what `shares_memory` raises, and ConfigError if messages are
    limited although there is one process only or GPUs send them.
    """
    settings.check_several(len(layout))
    if settings.limited and device.type != "cpu":
        raise ConfigError(
            f"{settings.limited} delays messages of CPUs only, not of GPUs: use device=cpu, or leave it out."
        )
    limits = Limits(settings.latency_ms * 1e-3, settings.seconds_per_byte) if settings.limited else None
    if shares_memory(settings, layout, device):
        return SharedMemory(layout, settings.timeout_s, limits)
    return TorchDistributed(limits)


def shares_memory(settings: NetworkSettings, layout: Sequence[range], device: torch.device) -> bool:
    """Return whether to use shared memory, by `network.transport`; all processes call this at once.

    Raises ConfigError if shared memory is requested but unavailable.
    """
    if settings.transport is Carrier.torch or len(layout) == 1:  # a single process needs no transport
        return False
    if device.type == "cpu" and possible():
        return True
    if settings.transport is Carrier.shared_memory:
        raise ConfigError(
            "network.transport=shared_memory needs all processes on one Linux host, in one container, and on CPUs: "
            "use network.transport=auto."
        )
    return False
