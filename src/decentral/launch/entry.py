"""Where a worker process begins. Imports nothing heavy: the launching process imports it, too."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from decentral.config import Config
    from decentral.store import Status
    from decentral.world import World

    Part = Callable[[Config, World, Path], Status]
    """What every process of a group does, together with the others; it can be pickled."""


class Place(NamedTuple):
    """Process `rank` of `size`, in the run's attempt number `attempt`, counted from 0."""

    rank: int
    size: int
    attempt: int


def worker_main(
    config: str, directory: str, place: Place, pipe: Connection, environment: dict[str, str], part: Part | None = None
) -> None:
    """Carry out this process's part (of the run, unless another is given), with this environment and no other.

    See worker.py.
    """
    for name in set(os.environ) - set(environment):  # what the fork server, which may be older, was started with
        del os.environ[name]
    os.environ.update(environment)
    from decentral.launch.worker import work

    work(config, directory, place, pipe, part)
