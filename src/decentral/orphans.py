"""No process outlives the one that started it."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import wait


def die_with_parent() -> None:
    """End this process the moment the one that started it is gone, even by SIGKILL."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "the main process has no parent to watch"
    sentinel = parent.sentinel

    def watch() -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="watch parent").start()
