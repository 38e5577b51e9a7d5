"""Fixtures for whole runs: `start` carries out a configuration in this process or in several, quickly."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pytest
from filelock import FileLock

from decentral.registry import plugins
from decentral.store import RunStore

if TYPE_CHECKING:
    from decentral.config.schema import Config
    from decentral.conformance.properties import Walk

if not plugins.shipped():  # what documents, results and packages are about is the whole of it
    collect_ignore = ["test_documents.py", "test_results.py", "test_packaging.py"]

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: here and in child processes
os.environ.setdefault("WANDB_MODE", "offline")
_MEMORY = Path("/dev/shm")
if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 2**32:  # files of tests are many and small
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a script's background has it
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # as nohup has it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@dataclass(frozen=True)
class Result:
    """What a run left behind."""

    status: str
    directory: Path

    @property
    def iterates(self) -> np.ndarray:
        """[steps + 1, n, P]."""
        with np.load(self.directory / "trace.npz") as file:
            return file["iterates"]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The metrics, less how long it took."""
        from decentral.store import read_metrics

        return [{key: value for key, value in row.items() if key != "wall_s"} for row in read_metrics(self.directory)]

    @property
    def facts(self) -> dict[str, Any]:
        """status.json."""
        return RunStore.peek(self.directory) or {}

    @property
    def walk(self) -> Walk:
        """What `decentral.conformance` looks at."""
        from decentral.conformance.properties import Walk

        facts = self.facts
        return Walk(self.iterates, facts["bytes_sent"], facts["messages_sent"], facts["bytes_sent"])

    def last(self, metric: str, worker: int | str) -> float:
        """The value of a metric in the last evaluation."""
        found = [row["value"] for row in self.rows if (row["metric"], row["worker"]) == (metric, worker)]
        return found[-1]


def exit_status(command: Callable[[Sequence[str]], None], *arguments: str) -> int:
    """Of a command with these arguments."""
    with pytest.raises(SystemExit) as end:
        command(list(arguments))
    return int(end.value.code or 0)


class Start(Protocol):
    def __call__(self, *overrides: str, processes: int = 1, directory: str = "run", **faults: int) -> Result: ...


@pytest.fixture(scope="session")
def worlds() -> Iterator[Callable[[int], Any]]:
    """size -> a group of that many processes, started at most once."""
    from worlds import Processes

    started: dict[int, Processes] = {}

    def group(size: int) -> Processes:
        if size not in started or not started[size].processes:
            started[size] = Processes(size)
        return started[size]

    yield group
    for processes in started.values():
        processes.stop()


@pytest.fixture(scope="session")
def ranks() -> Iterator[Any]:
    """Ranks of scripts, in processes that may die."""
    from ranks import Ranks

    found = Ranks()
    yield found
    found.stop()


@pytest.fixture
def pair() -> Iterator[Any]:
    """A group of two processes of one's own, which may break."""
    from worlds import Processes

    processes = Processes(2)
    yield processes
    processes.stop()


def starting(folder: Path, worlds: Callable[[int], Any]) -> Start:
    """Return a function that carries out runs in directories of this folder.

    On quadratics, where an epoch is a step, models are evaluated in every tenth step unless `overrides` say otherwise.
    """
    import torch

    from configure import configure
    from decentral.network.world import World
    from worlds import carry_out

    composed: dict[tuple[str, ...], Config] = {}

    def _start(*overrides: str, processes: int = 1, directory: str = "run", **faults: int) -> Result:
        path = folder / directory
        if overrides not in composed:
            seldom = ["evaluation.every_epochs=10"] if "task=quadratics" in overrides else []
            composed[overrides] = configure(*seldom, *overrides, "progress=false", "device=cpu")
        config = replace(composed[overrides], run_dir=str(path))
        faults = {"crash_at": -1, "interrupt_at": -1} | faults
        if processes == 1:
            statuses = [carry_out(World(0, 1, torch.device("cpu")), config, **faults)]
        else:
            statuses = worlds(processes).call(carry_out, config, *faults.values())
        assert len(set(statuses)) == 1, f"the processes disagree about how the run ended: {statuses}"
        return Result(statuses[0], path)

    return _start


@pytest.fixture
def start(tmp_path: Path, worlds: Callable[[int], Any]) -> Start:
    """Carry out a run in `directory`, with one or more processes; `crash_at` and `interrupt_at` name a step."""
    return starting(tmp_path, worlds)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory, worlds: Callable[[int], Any]) -> Callable[..., Result]:
    """Return the run with these overrides, which one process carries out once per session; tests only read it."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "recorded"
    folder.mkdir(exist_ok=True)
    started = starting(folder, worlds)

    def record(*overrides: str) -> Result:
        name = hashlib.sha256(repr(overrides).encode()).hexdigest()
        with FileLock(folder / f"{name}.lock"):
            known = RunStore.peek(folder / name)
            return Result(known["status"], folder / name) if known else started(*overrides, directory=name)

    return record


@pytest.fixture(autouse=True, scope="session")
def no_waiting() -> Iterator[None]:
    """Runs wait neither for the disk nor for git."""
    from worlds import no_waiting

    with no_waiting():
        yield


@pytest.fixture(autouse=True)
def nothing_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test says with --config-dir is forgotten after it."""
    monkeypatch.setenv("DECENTRAL_OWN", "")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the figures of runs that decentral-run carries out in this process."""
    monkeypatch.setattr("decentral.cli.single.draw", lambda *_: None)


@pytest.fixture
def few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show the studies that have results on the pages of reports, and not all others of the catalog."""
    monkeypatch.setattr("decentral.report.pages.catalogue", SimpleNamespace(names=list))


@pytest.fixture
def here() -> Iterator[pytest.MonkeyPatch]:
    """Carry out the jobs of sweeps and studies in this process; `undo()` it for the contrary."""
    from decentral.scheduling.attempt import carry_out
    from decentral.scheduling.job import Ended
    from decentral.scheduling.local_pool import LocalPool

    ended: list[Ended] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalPool, "start", lambda _, job: ended.append(carry_out(job.placed(1))))
        patch.setattr(LocalPool, "wait", lambda *_: [ended.pop()])
        yield patch


@pytest.fixture
def inline(here: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Carry them out in this process, and draw no figure."""
    here.setattr("decentral.cli.sweep.draw", lambda *_: None)
    here.setattr("decentral.report.figures.canvas.save", lambda figure, *_: [Path(f"{figure.file}.png")])
    return here
