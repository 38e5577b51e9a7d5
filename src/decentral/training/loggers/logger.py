"""The interface of a logger, and a guard that isolates its failures from the run."""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decentral.host import machine
from decentral.settings import Settings
from decentral.terminal import console

_CLOSE_TIMEOUT_S = 30.0
_MAX_WAITING = 10_000


class Sink:
    """A destination of metrics; this one discards everything."""

    place = ""
    """The place where a user finds the metrics: a folder, an address or a command."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Show these values at this step; steps do not decrease."""

    def close(self, status: str) -> None:
        """Finish with the run's final status (a `store.Status`)."""


class Logger(Settings, ABC, where="logger"):
    """A choice of `logger=...`. Its components are dataclasses; the sinks they open may be slow and may fail.

    every_worker   also log the metrics of every worker, as in test/accuracy/worker3: a field of loggers that support it
    """

    every_worker = False

    @abstractmethod
    def check(self) -> None:
        """Raise ConfigError if this cannot work here (a package is missing). Fast; imports nothing heavy."""

    @abstractmethod
    def open(self, run_id: str, config: dict[str, Any], directory: Path) -> Sink:
        """Start logging a run into `directory`, or to a server. Called through `Guarded`."""


@dataclass
class NoLogger(Logger):
    """Metrics go to the run directory and nowhere else."""

    name: str = "none"

    def check(self) -> None:
        """Always possible."""

    def open(self, run_id: str, config: dict[str, Any], directory: Path) -> Sink:
        """Return a sink that discards everything."""
        return Sink()


def require(package: str, key: str, install: str) -> None:
    """Raise ConfigError unless `package` is installed, without importing it."""
    machine.require(package, f"logger={key}", f"{install}, or choose logger=none")


class Guarded(Sink):
    """A sink that can neither fail, nor hang, nor slow down its run.

    A separate thread opens and feeds the logger; `log` only enqueues the values. The first exception or queue overflow
    prints a one-line warning on stderr and ends logging. `close` waits for the queue, at most `close_timeout_s`.
    """

    def __init__(
        self,
        logger: Logger,
        run_id: str,
        config: dict[str, Any],
        directory: Path,
        close_timeout_s: float = _CLOSE_TIMEOUT_S,
    ) -> None:
        self._name = getattr(logger, "name", type(logger).__name__)
        self._close_timeout_s = close_timeout_s
        self.failed = False
        """True if something was not logged."""
        self._giving_up = threading.Lock()
        self._waiting: queue.Queue[tuple[int, dict[str, float]] | str] = queue.Queue(_MAX_WAITING)
        self._thread = threading.Thread(
            target=self._serve, args=(logger, run_id, config, directory), name=f"logger {self._name}", daemon=True
        )
        self._thread.start()

    def log(self, step: int, values: dict[str, float]) -> None:
        """Enqueue the values; takes microseconds."""
        if self.failed:
            return
        try:
            self._waiting.put_nowait((step, dict(values)))
        except queue.Full:
            self._give_up("it is too slow")

    def close(self, status: str) -> None:
        """Wait, up to the timeout, until everything is logged."""
        if self.failed:
            return
        try:
            self._waiting.put_nowait(status)
        except queue.Full:
            self._give_up("it is too slow")
            return
        self._thread.join(self._close_timeout_s)
        if self._thread.is_alive():
            self._give_up(f"it did not finish within {self._close_timeout_s:g} s")

    def _serve(self, logger: Logger, run_id: str, config: dict[str, Any], directory: Path) -> None:
        try:
            sink = logger.open(run_id, config, directory)
            self.place = sink.place
            while not self.failed:
                item = self._waiting.get()
                if isinstance(item, str):
                    sink.close(item)
                    return
                sink.log(*item)
        except BaseException as error:  # including KeyboardInterrupt, which is not the user's in this thread
            self._give_up(one_line(error))

    def _give_up(self, reason: str) -> None:
        with self._giving_up:
            if not self.failed:
                warn(self._name, f"stopped: {reason}. The run continues, and its results are in its directory.")
            self.failed = True


def warn(name: str, text: str) -> None:
    """Print one line on stderr; even this must not fail the run."""
    console.warn(f"logger={name} {text}")


def one_line(error: BaseException) -> str:
    """Return the first line of an exception's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
