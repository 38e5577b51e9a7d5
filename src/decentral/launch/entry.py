"""Where a worker process begins. Imports nothing heavy: the launching process imports it, too."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection


def worker_main(
    config: str, directory: str, rank: int, size: int, pipe: Connection, environment: dict[str, str]
) -> None:
    """Carry out this process's part of the run; see worker.py."""
    os.environ.update(environment)
    from decentral.launch.worker import work

    work(config, directory, rank, size, pipe)
