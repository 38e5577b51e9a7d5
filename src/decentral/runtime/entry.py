"""Where a worker process begins. Imports nothing heavy: the launching process imports it, too."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from decentral.registry import own
from decentral.runtime.part import Place

if TYPE_CHECKING:
    from decentral.runtime.part import Part


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
    own.mount()
    from decentral.runtime.worker import work

    work(config, directory, place, pipe, part)
