"""Processes that have joined one gloo group and carry out calls: starting them once is what makes these tests fast."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import torch

from decentral.config.prepared import prepare
from decentral.config.schema import Config
from decentral.host.interrupt import HEARD
from decentral.network.locks import gloo_group
from decentral.network.world import World
from decentral.store import provenance
from decentral.training import run
from decentral.training.stepper import Stepper

_PATIENCE_S = 120.0
PRELOADED = ["decentral.runtime.worker", "decentral.script.wrap", "torch._dynamo"]
"""What processes share instead of importing it each; torch's optimizers import `torch._dynamo`, which takes long."""


class Crash(RuntimeError):
    """What a test lets go wrong."""


class Processes:
    """`size` processes in one group; `call(f, *args)` is [f(world, *args) on rank 0, 1, ...]."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("forkserver")
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        port = self._receive(self.pipes[0])
        for pipe in self.pipes[1:]:
            pipe.send(port)
        self._receive_all()

    def call(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        for pipe in self.pipes:
            pipe.send((function, args))
        return self._receive_all()

    def survivor(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        """What this rank answers, whatever becomes of the others."""
        for pipe in self.pipes:
            pipe.send((function, args))
        assert self.pipes[rank].poll(_PATIENCE_S)
        return self._receive(self.pipes[rank])

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        self.processes = []

    def _receive_all(self) -> list[Any]:
        waiting, results = set(range(len(self.pipes))), [None] * len(self.pipes)
        while waiting:
            ready = multiprocessing.connection.wait([self.pipes[r] for r in waiting], _PATIENCE_S)
            if not ready:
                self.stop()
                raise AssertionError(f"processes {sorted(waiting)} did not answer within {_PATIENCE_S:g} s")
            for rank in [r for r in waiting if self.pipes[r] in ready]:
                results[rank] = self._receive(self.pipes[rank])
                waiting.remove(rank)
        return results

    def _receive(self, pipe: Connection) -> Any:
        kind, content = pipe.recv()
        if kind == "failed":
            self.stop()  # the others may wait for it for ever
            raise AssertionError(content)
        return content


def _serve(rank: int, size: int, pipe: Connection) -> None:
    import torch.distributed as dist

    gc.freeze()  # what is imported: collections look at the rest
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)  # which the program's own fork server has blocked
    warnings.simplefilter("error")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    timeout = timedelta(seconds=_PATIENCE_S)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
        pipe.send(("done", store.port))
    else:
        store = dist.TCPStore("127.0.0.1", pipe.recv(), size, is_master=False, timeout=timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    world = World(rank, size, torch.device("cpu"), distributed=True)
    pipe.send(("done", None))
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("done", function(world, *args)))
        except BaseException:
            pipe.send(("failed", f"on rank {rank} of {size}:\n{traceback.format_exc()}"))


def lose_patience(window: Any, timeout_s: float) -> None:
    """From now on this process waits no longer than that for all to meet at a window, which was opened with more."""
    window._meeting.total(torch.zeros(1))  # all have come this far
    group = gloo_group(window._meeting._timeout)
    group._get_backend(torch.device("cpu"))._set_default_timeout(timedelta(seconds=timeout_s))


def how_it_ends(call: Callable[[], Any]) -> str:
    try:
        call()
    except (OSError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "it went well"


def are_named(told: list[list[str]], expected: list[str]) -> None:
    """What each rank was told has these parts, in this order."""
    for sentences in told:
        assert len(sentences) == len(expected)
        for sentence, part in zip(sentences, expected, strict=True):
            assert part in sentence, (part, sentence)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Runs in this process do not wait for the disk, and ask once about the checkout and the packages. Its fork server
    has imported what is PRELOADED, whatever starts it first."""
    _preload([])
    preload = mock.patch("multiprocessing.forkserver.set_forkserver_preload", _preload)
    git, version = mock.patch("decentral.store.provenance._git", _git), mock.patch(_VERSION, _version)
    with mock.patch("os.fsync"), preload, git, version:
        yield


_VERSION = "importlib.metadata.version"
_set_preload = forkserver.set_forkserver_preload
_git, _version = functools.cache(provenance._git), functools.cache(importlib.metadata.version)


def _preload(modules: list[str]) -> None:
    _set_preload([*modules, *PRELOADED])


def carry_out(world: World, config: Config, crash_at: int, interrupt_at: int) -> str:
    """`run` without waiting for the disk or git; returns the status, or "crashed".

    Both faults happen before the gradient of a step; -1: not at all.
    """
    with no_waiting(), _faults(crash_at, interrupt_at):
        try:
            return str(run.carry_out(prepare(config), world).value)
        except (Crash, ConnectionError):  # or that of another process, which was there first
            if crash_at < 0:
                raise
            return "crashed"


@contextmanager
def _faults(crash_at: int, interrupt_at: int) -> Iterator[None]:
    def sabotaged(step: Callable[[Any], None]) -> Callable[[Any], None]:
        def taken(self: Any) -> None:
            if self.t == interrupt_at:
                signal.raise_signal(signal.SIGTERM)
            if self.t == crash_at:
                raise Crash
            step(self)

        return taken

    with mock.patch.object(Stepper, "step", sabotaged(Stepper.step)):
        yield
