"""Where a worker process begins, and what it does. Imports nothing heavy: the launching process imports it, too."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from decentral.registry import plugins

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


def worker_main(
    config: str, directory: str, place: Place, pipe: Connection, environment: dict[str, str], part: Part | None = None
) -> None:
    """Begin as a fork of the fork server: take over this environment and no other, then join the group and do the part.

    `config` is the configuration's YAML, `directory` the run's. What happens is reported through the pipe; see
    `worker.work`, which does the rest and whose imports are heavy.
    """
    for name in set(os.environ) - set(environment):  # what the fork server, which may be older, was started with
        del os.environ[name]
    os.environ.update(environment)
    plugins.mount()
    from decentral.runtime.worker import work

    work(config, directory, place, pipe, part)
