"""Jobs whose results are the lines of a file, which survive a kill: what searches, simulations and facts share."""

from __future__ import annotations

import hashlib
import json
import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from decentral.config import Config, dump
from decentral.errors import ConfigError
from decentral.identity import identity
from decentral.launch.job import Job
from decentral.registry import components
from decentral.store import RunStore, Status
from decentral.store.lines import LineFile, read_lines
from decentral.tasks.task import Task

_STATUS_EVERY_S = 2.0
_TELL_EVERY_S = 0.5


@dataclass(frozen=True)
class Computation(Job):
    """A job in one process that adds line after line to a file in its directory."""

    config: Config
    name: str = ""

    folder: ClassVar[str]
    """Below the results directory."""
    lines: ClassVar[str]
    """The name of the file that the job adds to."""

    @abstractmethod
    def asked(self) -> dict[str, Any]:
        """What is computed, beside the configuration, as JSON values."""

    @abstractmethod
    def work(self, lines: LineFile, stop: Callable[[], bool], show: Callable[[float, str], None]) -> bool:
        """Compute what the lines do not hold yet, and add it to them; whether all is done now.

        `stop` says whether to stop early. `show` takes the share that is done, and a few words.
        """

    @property
    def id(self) -> str:
        """See `Job`."""
        known = {"kind": self.folder, "config": identity(self.config), **self.asked()}
        canonical = json.dumps(known, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    @property
    def directory(self) -> Path:
        """See `Job`."""
        return Path(self.config.results_dir).expanduser() / self.folder / self.id

    @property
    def title(self) -> str:
        """See `Job`."""
        return self.name or self.id

    def provenance(self) -> dict[str, Any]:
        """Where the numbers come from: this process, on the CPU, unless a job says otherwise."""
        from decentral.provenance import collect

        return collect(["cpu"], 1)

    def found(self) -> list[dict[str, Any]]:
        """The lines written so far."""
        return read_lines(self.directory / self.lines)

    def wall_s(self) -> float:
        """How long it took, in all its attempts; 0 if it is not done."""
        return float((RunStore.peek(self.directory) or {}).get("wall_s", 0.0))

    def carry_out(self) -> Status:
        """See `Job`. A second attempt goes on after the lines of the first."""
        finished = self.finished()
        if finished is not None:
            return finished
        import yaml

        from decentral.launch.failures import record

        own = yaml.safe_dump({self.folder: self.asked()}, sort_keys=False)
        with RunStore.open(self.directory, self.id, f"{dump(self.config)}{own}") as store:
            try:
                return self._recorded(store)
            except BaseException as error:
                with suppress(OSError):  # a full disk: the error itself is what the user must see
                    record(store, error)
                raise

    def _recorded(self, store: RunStore) -> Status:
        import torch

        from decentral.interrupt import Interrupt
        from decentral.progress import Messenger

        torch.set_num_threads(1)
        before = float((RunStore.peek(self.directory) or {}).get("spent_s", 0.0))
        began = time.perf_counter()
        shown = told = began

        def spent() -> float:
            return round(before + time.perf_counter() - began, 3)

        def show(fraction: float, text: str) -> None:
            nonlocal shown, told
            now = time.perf_counter()
            if now - told >= _TELL_EVERY_S:
                told = now
                with suppress(OSError):  # the launcher is gone
                    messenger.tell(fraction, text)
            if now - shown >= _STATUS_EVERY_S:
                shown = now
                store.set_status(Status.running, fraction=round(fraction, 3), text=text, spent_s=spent())

        store.set_status(Status.running, spent_s=before)
        store.write_provenance(self.provenance())
        with (
            torch.no_grad(),
            Interrupt() as interrupt,
            closing(LineFile(self.directory / self.lines)) as lines,
            closing(Messenger()) as messenger,
        ):
            done = self.work(lines, lambda: interrupt.requested, show)
            lines.sync()
        status = Status.done if done else Status.interrupted
        store.set_status(status, spent_s=spent(), **({"wall_s": spent()} if done else {}))
        return status


def check(config: Config) -> None:
    """Refuse what an ensemble cannot be made of. Raises ConfigError."""
    if not config.task.can_be_ensemble:
        tasks = components("tasks").items()
        able = [f"task={name}" for name, task in tasks if issubclass(task, Task) and task.can_be_ensemble]
        raise ConfigError(
            f"task={config.task.name} cannot be used: this study solves many problems side by side, as one run, which "
            f"only {' and '.join(able)} can."
        )
    check_losses(config)
    assert config.num_workers is not None
    pieces = config.rounds().num_pieces
    if pieces > 1:
        raise ConfigError(
            f"topology={config.topology.name} cuts each model in {pieces} pieces, which an ensemble of models in one "
            "row cannot: use a topology of one graph, such as bt or chain."
        )


def check_losses(config: Config) -> None:
    """Refuse messages that are lost. Raises ConfigError."""
    drop = config.network.drop_probability
    if drop:
        raise ConfigError(
            f"network.drop_probability={drop:g} cannot be used: what this study computes side by side would lose the "
            "same messages, whatever the seeds; leave it out, or use decentral-run for each seed."
        )


def same(config: Config, results_dir: Path) -> Config:
    """The configuration less what the members decide, so that equal searches have equal ids."""
    return replace(config, seed=0, lr=0.0, results_dir=str(results_dir), run_dir=None)
