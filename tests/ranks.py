"""Ranks of a script in processes of their own, which may die: forks of one process that has imported everything."""

from __future__ import annotations

import gc
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

_PATIENCE_S = 120.0


class Ranks:
    """`call(f, size, folder, *args)` carries out f(rank, *args) on each rank, and has what each wrote to stderr.

    What f raises ends its rank as it would end a script. A rank that does not end is killed, and fails the test.
    `codes` are the exit statuses of the last call.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_fork, args=(theirs,))
        self._process.start()
        theirs.close()

    def call(self, function: Callable[..., object], size: int, folder: Path, *args: Any) -> list[str]:
        self._pipe.send((function, size, str(folder), args))
        self.codes = self._pipe.recv()
        assert None not in self.codes, self.codes
        return [(folder / f"{rank}.err").read_text() for rank in range(size)]

    def stop(self) -> None:
        self._pipe.close()
        self._process.join()


def _fork(pipe: Connection) -> None:
    gc.freeze()  # what is imported: collections look at the rest
    fork = multiprocessing.get_context("fork")
    while True:
        try:
            function, size, folder, args = pipe.recv()
        except EOFError:
            return
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = [fork.Process(target=_live, args=(r, size, port, folder, function, args)) for r in range(size)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(_PATIENCE_S)
        pipe.send([rank.exitcode for rank in ranks])
        for rank in ranks:
            rank.kill()
            rank.join()


def _live(rank: int, size: int, port: int, folder: str, function: Callable[..., object], args: Any) -> None:
    os.chdir(folder)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
    torch.set_num_threads(1)
    os.dup2(os.open(f"{rank}.err", os.O_WRONLY | os.O_CREAT), 2)
    sys.stderr, sys.excepthook = os.fdopen(2, "w", closefd=False), sys.__excepthook__
    try:
        function(rank, *args)
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
