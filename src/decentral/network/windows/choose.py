"""Which windows a group of processes gets."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from decentral.network.settings import NetworkSettings
from decentral.network.transports.choose import shares_memory
from decentral.network.windows.addressed import OneProcessWindow, SharedMemoryWindow
from decentral.network.windows.messages import MessageWindow
from decentral.network.windows.slots import Edges
from decentral.network.windows.window import Window


def open_window(
    settings: NetworkSettings, edges: Edges, layout: Sequence[range], t: Tensor, zero_init: bool = True
) -> Window:
    """The window that `network.transport` asks for; all processes of the group call this at once.

    `layout` are the workers of each process, t [k, P] the rows of the local ones. Raises what `shares_memory` raises.
    """
    if len(layout) == 1:
        return OneProcessWindow(edges, t, zero_init)
    kind = SharedMemoryWindow if shares_memory(settings, layout, t.device) else MessageWindow
    return kind(edges, layout, t, settings.timeout_s, zero_init)
