"""A worker process of a run on one machine. The warm server imports this module, so that forks find torch in memory."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch.distributed as dist

from decentral.config import load, run_id
from decentral.errors import ConfigError
from decentral.launch.group import joined
from decentral.orphans import die_with_parent
from decentral.run import run


def work(config_text: str, directory: str, rank: int, size: int, pipe: Connection) -> None:
    """Join the group, run, and report through the pipe: ("port", p), then ("status" | "refused" | "failed", text)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    config = load(config_text)
    try:
        timeout = timedelta(seconds=config.network.timeout_s)
        if rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
            pipe.send(("port", store.port))
        else:
            store = dist.TCPStore("127.0.0.1", pipe.recv(), size, is_master=False, timeout=timeout)
        with joined(config, rank, size, rank, "attempt0", run_id(config), store) as world:
            status = run(config, world, Path(directory))
        pipe.send(("status", status.value))
    except ConfigError as error:
        pipe.send(("refused", str(error)))
    except BaseException as error:
        if os.environ.get("DECENTRAL_TRACEBACK"):
            print(traceback.format_exc(), file=sys.stderr, flush=True)
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
        os._exit(1)
