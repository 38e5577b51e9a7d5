"""A worker process of a run on one machine. The warm server imports this module, so that forks find torch in memory."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from decentral.config import load
from decentral.errors import ConfigError
from decentral.identity import run_id
from decentral.launch.entry import Place
from decentral.launch.failures import classify, describe
from decentral.launch.group import find_store, joined, serve_store, stay_on_this_machine
from decentral.orphans import die_with_parent
from decentral.run import run

if TYPE_CHECKING:
    from decentral.launch.entry import Part


def work(config_text: str, directory: str, place: Place, pipe: Connection, part: Part | None = None) -> None:
    """Join the group, run (or do `part`), and report through the pipe: ("port", p), then one of ("status", text),
    ("refused", error), ("failed", kind, text)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    stay_on_this_machine()
    config = load(config_text)
    try:
        if place.rank == 0:
            store = serve_store(place.size, config.network.timeout_s)
            pipe.send(("port", store.port))
        else:
            store = find_store(pipe.recv(), place.size, config.network.timeout_s)
        with joined(config, place.rank, place.size, place.rank, place.attempt, run_id(config), store) as world:
            status = (part or run)(config, world, Path(directory))
        pipe.send(("status", status.value))
    except ConfigError as error:
        pipe.send(("refused", error))
    except BaseException as error:
        if os.environ.get("DECENTRAL_TRACEBACK"):
            print(traceback.format_exc(), file=sys.stderr, flush=True)
        pipe.send(("failed", classify(error).value, describe(error)))
        os._exit(1)
