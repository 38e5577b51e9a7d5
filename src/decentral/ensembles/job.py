"""Jobs whose results are the lines of a file, which survive a kill: what searches, simulations and facts share."""

from __future__ import annotations

import hashlib
import json
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from decentral.config import Config, dump, identity
from decentral.errors import ConfigError
from decentral.launch.job import Job
from decentral.store import RunStore, Status
from decentral.store.files import decode, encode

_STATUS_EVERY_S = 2.0


class Lines:
    """A file of JSON objects, one a line, each written at once; a line that was cut short is dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known = read_lines(path)
        with open(path, "ab") as file:
            file.truncate(_whole_bytes(path))

    def append(self, line: dict[str, Any]) -> None:
        """Write a line. Raises OSError if the disk is full."""
        text = json.dumps(encode(line), allow_nan=False) + "\n"
        with open(self.path, "ab", buffering=0) as file:
            file.write(text.encode())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of the file; none if there is no file."""
    if not path.exists():
        return []
    return [decode(json.loads(line)) for line in path.read_bytes()[: _whole_bytes(path)].splitlines()]


def _whole_bytes(path: Path) -> int:
    return path.read_bytes().rfind(b"\n") + 1


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
    def work(self, lines: Lines, stop: Callable[[], bool], show: Callable[[float, str], None]) -> bool:
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

        own = yaml.safe_dump({self.folder: self.asked()}, sort_keys=False)
        with RunStore.open(self.directory, self.id, f"{dump(self.config)}{own}") as store:
            try:
                return self._recorded(store)
            except BaseException as error:
                _tell_failure(store, error)
                raise

    def _recorded(self, store: RunStore) -> Status:
        import torch

        from decentral.interrupt import Interrupt
        from decentral.provenance import collect

        torch.set_num_threads(1)
        before = float((RunStore.peek(self.directory) or {}).get("spent_s", 0.0))
        began = time.perf_counter()
        shown = [began]

        def spent() -> float:
            return round(before + time.perf_counter() - began, 3)

        def show(fraction: float, text: str) -> None:
            if time.perf_counter() - shown[0] >= _STATUS_EVERY_S:
                shown[0] = time.perf_counter()
                store.set_status(Status.running, fraction=round(fraction, 3), text=text, spent_s=spent())

        store.set_status(Status.running, spent_s=before)
        store.write_provenance(collect(["cpu"], 1))
        with torch.no_grad(), Interrupt() as interrupt:
            done = self.work(Lines(self.directory / self.lines), lambda: interrupt.requested, show)
        status = Status.done if done else Status.interrupted
        store.set_status(status, spent_s=spent(), **({"wall_s": spent()} if done else {}))
        return status


def _tell_failure(store: RunStore, error: BaseException) -> None:
    from decentral.launch.failures import classify, describe

    with suppress(OSError):  # a full disk: the error itself is what the user must see
        if isinstance(error, KeyboardInterrupt):
            store.set_status(Status.interrupted)
        else:
            store.set_status(Status.failed, failure=classify(error).value, reason=describe(error))


def check(config: Config, overrides: Sequence[str]) -> None:
    """Refuse what an ensemble cannot be made of. Raises ConfigError."""
    decided = [o for o in overrides if o.partition("=")[0] in ("seed", "lr", "task.zeta2", "task.problem")]
    if decided:
        raise ConfigError(f"{decided[0]} cannot be set: in this study seeds, zeta2 and learning rates are its own.")
    if config.task.name != "quadratics":
        raise ConfigError(f"task={config.task.name} cannot be used: this study is about task=quadratics.")
    assert config.num_workers is not None
    pieces = config.topology.schedule(config.num_workers).num_pieces
    if pieces > 1:
        raise ConfigError(
            f"topology={config.topology.name} cuts each model in {pieces} pieces, which an ensemble of models in one "
            "row cannot: use a topology of one graph, such as bt or chain."
        )


def same(config: Config, results_dir: Path) -> Config:
    """The configuration less what the members decide, so that equal searches have equal ids."""
    return replace(config, seed=0, lr=0.0, results_dir=str(results_dir), run_dir=None)
