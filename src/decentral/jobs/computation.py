"""Jobs whose results are the lines of a file, so that a killed one goes on after the last line that it wrote."""

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

from decentral.config.files import dump
from decentral.config.identity import identity
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.scheduling.job import Demand, Job
from decentral.store import RunStore, Status
from decentral.store.files import at_home
from decentral.store.lines import LineFile, read_lines

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
    def parameters(self) -> dict[str, Any]:
        """What the result depends on beside the configuration, as JSON values: with it, part of the job's id."""

    @abstractmethod
    def work(self, lines: LineFile, stop: Callable[[], bool], show: Callable[[float, str], None]) -> bool:
        """Compute what the lines do not hold yet, and add it to them; whether all is done now.

        `stop` says whether to stop early. `show` takes the share that is done, and a few words.
        """

    @property
    def id(self) -> str:
        """12 hexadecimal digits: a hash of the folder, the configuration's identity and the parameters."""
        known = {"kind": self.folder, "config": identity(self.config), **self.parameters()}
        canonical = json.dumps(known, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    @property
    def directory(self) -> Path:
        """`<results directory>/<folder>/<id>`."""
        return at_home(self.config.results_dir) / self.folder / self.id

    @property
    def title(self) -> str:
        """The name that the study gives it, or else the id."""
        return self.name or self.id

    def provenance(self) -> dict[str, Any]:
        """Where the numbers come from: its processes, on the CPU, unless a job says otherwise."""
        from decentral.store.provenance import collect

        return collect(["cpu"], self.demand.processes or 1)

    def found(self) -> list[dict[str, Any]]:
        """The lines written so far."""
        return read_lines(self.directory / self.lines)

    def wall_s(self) -> float:
        """Seconds that it took, all attempts together; 0 if it is not done."""
        return float((RunStore.peek(self.directory) or {}).get("wall_s", 0.0))

    def carry_out(self) -> Status:
        """Compute what is missing; a second attempt goes on after the lines of the first. Returns how it ended.

        Raises what `work` raises, after it has been recorded in the directory.
        """
        finished = self.finished()
        if finished is not None:
            return finished
        import yaml

        own = yaml.safe_dump({self.folder: self.parameters()}, sort_keys=False)
        with RunStore.open(self.directory, self.id, f"{dump(self.config)}{own}") as store:
            return self._recorded(store)

    def _recorded(self, store: RunStore) -> Status:
        import torch

        from decentral.host.interrupt import Interrupt
        from decentral.store.failures import record
        from decentral.store.ownership import DirectoryLost
        from decentral.terminal.progress import Messenger

        torch.set_num_threads(1)
        earlier = RunStore.peek(self.directory) or {}
        before, share = float(earlier.get("spent_s", 0.0)), self._stored(earlier)
        began = time.perf_counter()
        shown = told = began

        def spent() -> float:
            return round(before + time.perf_counter() - began, 3)

        def show(fraction: float, text: str) -> None:
            nonlocal shown, told, share
            now, share = time.perf_counter(), round(fraction, 3)
            if now - told >= _TELL_EVERY_S:
                told = now
                with suppress(OSError):  # the launcher is gone
                    messenger.tell(fraction, text)
            if now - shown >= _STATUS_EVERY_S:
                shown = now
                store.set_status(Status.running, fraction=share, text=text, spent_s=spent())

        try:
            store.set_status(Status.running, fraction=share, spent_s=before)
            store.write_provenance(self.provenance())
            with (
                torch.no_grad(),
                Interrupt() as interrupt,
                closing(LineFile(self.directory / self.lines)) as lines,
                closing(Messenger()) as messenger,
            ):
                done = self.work(lines, lambda: interrupt.requested, show)
                lines.sync()
        except BaseException as error:
            with suppress(OSError, DirectoryLost):  # a full disk: the error itself is what the user must see
                record(store, error, fraction=share, spent_s=spent())
            raise
        status = Status.done if done else Status.interrupted
        store.set_status(status, spent_s=spent(), **({"wall_s": spent()} if done else {"fraction": share}))
        return status


class BetweenProcesses:
    """A computation with a process for each worker, in which something is timed: nothing else runs meanwhile."""

    config: Config

    @property
    def num_workers(self) -> int:
        """n, and as many processes."""
        assert self.config.num_workers is not None
        return self.config.num_workers

    @property
    def demand(self) -> Demand:
        """All of the machine."""
        return Demand(self.num_workers, "cpu", alone=True)


@dataclass(frozen=True)
class SeededComputation(Computation):
    """A line for each seed, with the seed in it; seeds that have one are not computed again."""

    seeds: tuple[int, ...] = ()

    @abstractmethod
    def line(self, seed: int) -> dict[str, Any]:
        """What comes out for a seed, beside the seed."""

    def work(self, lines: LineFile, stop: Callable[[], bool], show: Callable[[float, str], None]) -> bool:
        """One seed after the other."""
        known = {line["seed"] for line in lines.known}
        for number, seed in enumerate(self.seeds):
            if seed in known:
                continue
            if stop():
                return False
            lines.append({"seed": seed, **self.line(seed)})
            show((number + 1) / len(self.seeds), f"seed {seed}")
        return True


def check_losses(config: Config) -> None:
    """Raises ConfigError if messages may get lost."""
    drop = config.network.drop_probability
    if drop:
        raise ConfigError(
            f"network.drop_probability={drop:g} cannot be used: what this study computes side by side would lose the "
            "same messages, whatever the seeds; leave it out, or use decentral-run for each seed."
        )


def without_seed_and_rate(config: Config) -> Config:
    """The configuration less what a job decides itself (seed, lr): equal jobs get equal ids."""
    return replace(config, seed=0, lr=0.0, run_dir=None)
