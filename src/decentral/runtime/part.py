"""What every process of a run does, and which of them one is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from decentral.config.schema import Config
    from decentral.network.world import World
    from decentral.store import Status

    Part = Callable[[Config, World, Path], Status]
    """What every process of a group does, together with the others: the run itself, unless a job has another. It can
    be pickled."""


class Place(NamedTuple):
    """Process `rank` of `size`, in the run's attempt number `attempt`, counted from 0."""

    rank: int
    size: int
    attempt: int
