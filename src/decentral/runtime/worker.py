"""A worker process of a run on one machine. The warm server imports this module, so that forks find torch in memory."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from torch.distributed import TCPStore

from decentral.config.prepared import Prepared
from decentral.errors import ConfigError
from decentral.host.processes import die_with_parent
from decentral.host.torch_state import keep_freed_memory
from decentral.runtime.process_group import joined, serve_store, stay_on_this_machine
from decentral.store.failures import classify, describe
from decentral.training.run import carry_out

if TYPE_CHECKING:
    from decentral.runtime.supervise import Part, Place

_START_S = 10.0  # more than a message takes: for process 0 to begin, on a busy machine


def work(packed: tuple[str, bytes, dict[str, Any]], place: Place, pipe: Connection, part: Part | None = None) -> None:
    """Join the group, run (or do `part`), and report through the pipe: ("port", p), then one of ("status", text),
    ("refused", error), ("failed", kind, text)."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    keep_freed_memory()
    stay_on_this_machine()
    run = Prepared.unpacked(*packed)
    timeout_s = run.config.network.timeout_s
    try:
        if place.rank == 0:
            store = serve_store(place.size, timeout_s)
            pipe.send(("port", store.port))
        else:
            if not pipe.poll(_START_S + timeout_s):
                raise TimeoutError("process 0 did not say where it waits for the others")
            timeout = timedelta(seconds=timeout_s)
            store = TCPStore("127.0.0.1", pipe.recv(), place.size, is_master=False, timeout=timeout)
        with joined(run, place.rank, place.size, place.rank, place.attempt, store) as world:
            status = (part or carry_out)(run, world)
        pipe.send(("status", status.value))
    except ConfigError as error:
        pipe.send(("refused", error))
    except BaseException as error:
        if os.environ.get("DECENTRAL_TRACEBACK"):
            print(traceback.format_exc(), file=sys.stderr, flush=True)
        with suppress(BrokenPipeError):  # a command that was interrupted while it started this process does not listen
            pipe.send(("failed", classify(error).value, describe(error)))
        os._exit(1)
