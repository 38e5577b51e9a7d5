"""Jobs whose results are the lines of a file, so that an interrupted job resumes after its last line, and the interface
of the measurements based on them."""

from __future__ import annotations

import hashlib
import json
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import yaml

from decentral.config.identity import identity
from decentral.config.parsing import dump
from decentral.config.prepared import Prepared, prepare
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.host.interrupt import Interrupt
from decentral.measurements.values import Labels, Meaning, Row, Value, title_of
from decentral.runtime.launch import in_processes
from decentral.scheduling.job import Demand, Job
from decentral.settings import Settings
from decentral.store import RunStore, Status
from decentral.store.failures import record
from decentral.store.files import at_home
from decentral.store.metrics import LineFile, lines_written, read_lines
from decentral.store.run_store import DirectoryLost
from decentral.terminal.progress import tell

if TYPE_CHECKING:
    from decentral.network.world import World

_STATUS_EVERY_S = 2.0
_TELL_EVERY_S = 0.5

Stop = Callable[[], bool]
"""A function that returns whether to stop early."""
Show = Callable[[float, str], None]
"""A function that receives the completed share and a short text."""


@dataclass
class Computation(Job):
    """A job in one process that appends lines to a file in its directory.

    labels    labels that distinguish it from others, for its title
    """

    config: Config = None  # type: ignore[assignment]
    labels: Labels = field(default_factory=dict)

    folder: ClassVar[str]
    """Name of its folder below the results directory."""
    lines: ClassVar[str] = "lines.jsonl"
    """Name of the file that the job appends to."""
    one_per_worker: ClassVar[bool] = False
    """True if it times something in one process per worker: nothing else runs meanwhile."""

    def parameters(self) -> dict[str, Any]:
        """Return the values that determine the result besides the configuration, as JSON values: part of the job's ID.
        By default they are all settings."""
        known = {field.name: getattr(self, field.name) for field in fields(self) if not field.metadata.get("inner")}
        settings = {name: value for name, value in known.items() if name not in ("config", "labels", "name")}
        return {name: vars(value) if isinstance(value, Settings) else value for name, value in settings.items()}

    def parts(self) -> list[dict[str, Any]]:
        """Return the first keys of each required line: by default one line for each seed, if there are seeds."""
        return [{"seed": seed} for seed in self.seeds] if hasattr(self, "seeds") else [{}]

    def line(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Compute the rest of the line that begins with these keys."""
        raise NotImplementedError

    def work(self, lines: LineFile, stop: Stop, show: Show) -> bool:
        """Compute the missing lines, and append them. Return whether all are complete now."""
        keys, known = self.parts(), lines.known
        for number, key in enumerate(keys, start=1):
            if any(key.items() <= line.items() for line in known):
                continue
            if stop():
                return False
            lines.append({**key, **self.line(**key)})
            show(number / len(keys), ", ".join(f"{name} {value}" for name, value in key.items()))
        return True

    @cached_property
    def id(self) -> str:  # type: ignore[override]
        """Return 12 hexadecimal digits: a hash of the folder, the configuration's identity and the parameters."""
        known = {"kind": self.folder, "config": identity(self.config), **self.parameters()}
        canonical = json.dumps(known, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    @cached_property
    def directory(self) -> Path:  # type: ignore[override]
        """Return `<results directory>/<folder>/<id>`."""
        return at_home(self.config.results_dir) / self.folder / self.id

    @property
    def title(self) -> str:
        """Return the labels as a title, or else the ID."""
        return title_of(self.labels) or self.id

    @property
    def n(self) -> int:
        """Return the number of workers."""
        assert self.config.num_workers is not None
        return self.config.num_workers

    @property
    def demand(self) -> Demand:
        """Return the demand: one core, or the whole machine."""
        return Demand(self.n, "cpu", alone=True) if self.one_per_worker else Demand()

    def provenance(self) -> dict[str, Any]:
        """Return the provenance of the numbers: by default its processes, on the CPU."""
        from decentral.store.provenance import collect

        return collect(["cpu"], self.demand.processes or 1)

    def found(self) -> list[dict[str, Any]]:
        """Return the lines written so far."""
        return read_lines(self.directory / self.lines)

    def wall_s(self) -> float:
        """Return the seconds that it took, over all attempts; 0 if it is not finished."""
        return float((RunStore.peek(self.directory) or {}).get("wall_s", 0.0))

    def finished(self) -> Status | None:
        """Return done if the lines exist; version 1 wrote them to other files and must be repeated."""
        return super().finished() if lines_written(self.directory / self.lines) else None

    def carry_out(self) -> Status:
        """Compute missing lines; a second attempt continues after those of the first. Return the final status.

        Raises what `work` raises, after recording it in the directory.
        """
        finished = self.finished()
        if finished is not None:
            return finished
        own = yaml.safe_dump({self.folder: self.parameters()}, sort_keys=False)
        with RunStore.open(self.directory, self.id, f"{dump(self.config)}{own}") as store:
            return self._recorded(store)

    def _recorded(self, store: RunStore) -> Status:
        import torch

        torch.set_num_threads(1)
        earlier = RunStore.peek(self.directory) or {}
        before, share = float(earlier.get("spent_s", 0.0)), float(earlier.get("fraction", 0.0))
        began = time.perf_counter()
        shown = told = began

        def spent() -> float:
            return round(before + time.perf_counter() - began, 3)

        def show(fraction: float, text: str) -> None:
            nonlocal shown, told, share
            now, share = time.perf_counter(), round(fraction, 3)
            if now - told >= _TELL_EVERY_S:
                told = now
                tell(fraction, text)
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


class InProcesses(Computation):
    """A computation in several processes, by default one for each worker, which compute each line together."""

    one_per_worker: ClassVar[bool] = True

    def opened(self, config: Config, world: World, known: list[dict[str, Any]]) -> AbstractContextManager[Any]:
        """Open what a process needs for all lines; the leader gets the known lines."""
        return nullcontext()

    @abstractmethod
    def part(self, world: World, opened: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Compute one process's part of the line that begins with these keys; on the leader, return the rest of the
        line."""

    def work(self, lines: LineFile, stop: Stop, show: Show) -> bool:
        """Compute the missing lines in new processes, whose leader appends them."""
        parts = self.parts()
        show(len(lines.known) / len(parts), f"{len(parts)} parts")
        return in_processes(prepare(self.config, self.directory), partial(_take_part, job=self)) is Status.done


def _take_part(run: Prepared, world: World, *, job: InProcesses) -> Status:
    """One process's part; the leader adds the lines. SIGTERM stops all of them after a line."""
    import torch

    if job.one_per_worker:
        torch.set_num_threads(1)
    with (
        torch.no_grad(),
        Interrupt() as interrupt,
        closing(LineFile(run.directory / job.lines)) if world.leader else nullcontext() as lines,
    ):
        known = lines.known if lines is not None else []
        with job.opened(run.config, world, known) as opened:
            for key in job.parts():
                if world.agree(int(any(key.items() <= line.items() for line in known))):
                    continue
                if world.any(interrupt.requested)[0]:
                    return Status.interrupted
                rest = job.part(world, opened, **key)
                if lines is not None:
                    lines.append({**key, **rest})
    return Status.done


def check_losses(config: Config) -> None:
    """Raise ConfigError if messages may get lost."""
    drop = config.network.drop_probability
    if drop:
        raise ConfigError(
            f"network.drop_probability={drop:g} cannot be used, because runs that this study computes together would "
            "lose the same messages for all seeds: leave it out, or use decentral-run for each seed."
        )


def without_seed_and_rate(config: Config) -> Config:
    """Return the configuration without the keys that a job sets itself (seed, lr): equal jobs get equal IDs."""
    return replace(config, seed=0, lr=0.0, run_dir=None)


# -- what a study measures ---------------------------------------------------------------------------------------------


@dataclass
class Measurement(Settings, Computation):
    """One row of a study at one column. Its further fields are settings: keys of the study's YAML, and of its rows.

    A study composes the configuration from its base, the row and the column, and makes the measurement and its cells.
    """

    row_labels: ClassVar[tuple[str, ...]] = ("method", "topology")
    """Keys of a row that distinguish it from the others."""
    decides: ClassVar[frozenset[str]] = frozenset({"lr"})
    """Keys of decentral-run that a user cannot override. If lr is among them, neither rate nor seed matters."""
    timed: ClassVar[frozenset[str]] = frozenset()
    """Keys that usually only say where and how something is computed, but affect this measurement's times."""
    meanings: ClassVar[dict[str, Meaning]] = {}
    """The known meanings of its metrics, by name."""

    @property
    def compared(self) -> str | None:
        """Return the metric that the published numbers refer to; None: all."""
        return None

    def check(self) -> None:
        """Raise ConfigError for a configuration that cannot be measured."""

    @classmethod
    def variants(cls, base: list[str], settings: dict[str, object]) -> dict[str, list[str]]:
        """Return field -> overrides that replace the row's overrides `base` in a further needed configuration."""
        return {}

    def beside(self, column: Sequence[Self]) -> Self:
        """Return the measurement with knowledge of all rows at its column; or a joint measurement of them."""
        return self

    def jobs(self) -> list[Job]:
        """Return the jobs required for its values."""
        return [self]

    def cells(self) -> list[Labels]:
        """Return the labels of its cells."""
        return [self.labels]

    def values(self, labels: Labels) -> Iterable[Value]:
        """Yield a cell's values, when all jobs are done; without the job's ID and time, and the published number."""
        raise NotImplementedError

    def curves(self, labels: Labels) -> Iterable[Row]:
        """Yield the lines of curves.csv of a cell, when all jobs are done."""
        return []
