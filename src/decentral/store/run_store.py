"""One run's directory: whose it is, what is in it, and finding the directories of many."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Self

from decentral.errors import ConfigError
from decentral.store import checkpoints, files
from decentral.store.checkpoints import Checkpoint, Written
from decentral.store.files import (
    GITIGNORE,
    is_leftover,
    is_locked,
    load_json,
    make_folder,
    read_json,
    try_lock,
    write_json,
    write_text,
)
from decentral.store.metrics import ALWAYS, COLUMNS, LineFile, Metric, write_metadata

LOCK = "run.lock"
LOG = "log.txt"  # what a launcher of many runs opens before the run begins
HEADER = "# run "  # before the run's id, at the beginning of config.yaml


class DirectoryTaken(ConfigError):
    """Another living process writes the run directory."""


class DirectoryLost(ConfigError):
    """The run directory that this process writes was deleted, moved or replaced."""


def take(lock: int, path: Path) -> None:
    """Take the lock, an open file, and write the owner into it.

    Raises DirectoryTaken if another process has it, ConfigError on a file system without locks.
    """
    try:
        free = try_lock(lock)
    except OSError as error:
        raise ConfigError(
            f"run_dir={path} is on a file system without locks ({error.strerror}): choose another folder."
        ) from error
    if not free:
        writer = os.pread(lock, 1000, 0).decode(errors="replace").strip() or "another process"
        raise DirectoryTaken(f"run_dir={path} is being written by {writer}: wait for it, or choose another run_dir.")
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def recorded_id(path: Path) -> str | None:
    """The id of the run that a directory belongs to, from the first line of its configuration or from its status."""
    written = id_in_config(path)
    if written is not None:
        return written
    found = (read_json(path / "status.json") or {}).get("run_id")
    return found if isinstance(found, str) else None


def id_in_config(path: Path) -> str | None:
    """The id in the first line of the configuration; None if there is no such line."""
    try:
        with open(path / "config.yaml", encoding="utf-8") as file:
            first = file.readline()
    except (OSError, UnicodeDecodeError):
        return None
    return first.removeprefix(HEADER).strip() if first.startswith(HEADER) else None


def refuse_foreign(path: Path, run_id: str) -> None:
    """Raise ConfigError if there is something at `path` that is not the directory of this run."""
    try:
        if not path.exists():
            return
    except OSError as error:  # its name is too long, or a link to itself is in it
        raise ConfigError(f"run_dir={path} cannot be used ({error.strerror}): choose another folder.") from None
    if not path.is_dir():
        raise ConfigError(f"run_dir={path} is a file: choose a folder that is new or empty.")
    recorded = recorded_id(path)
    if recorded not in (None, run_id):
        raise ConfigError(f"run_dir={path} holds run {recorded}, not run {run_id}: choose another run_dir.")
    entries = list(path.iterdir())
    link = next((one for one in [*entries, *path.glob("checkpoints/*")] if one.is_symlink()), None)
    if link is not None:
        raise ConfigError(f"{link} is a link, and a run only writes into its own folder: remove the link.")
    ours = [one for one in entries if one.name in (LOCK, LOG, GITIGNORE) or is_leftover(one.name)]
    if recorded is None and len(ours) < len(entries):  # more than a start that was killed leaves behind
        raise ConfigError(f"run_dir={path} contains files but is not a run directory: choose one that is new or empty.")


_RESULTS = (
    *(
        "metrics.jsonl",
        "metrics.json",
        "provenance.json",
        *("partition.csv", "names.json"),
        "local_tests.csv",
        "translations.csv",
        "trace.npz",
        "logged.json",
    ),
    *("models.safetensors", "learning_curves.png", "staleness.png"),
    *("timeline.json", "timeline.png", "timeline.jsonl", "workers.csv"),
    *("operations.jsonl", "gradient_times.csv"),
)
_STORED = ("status.json", *_RESULTS, "tensorboard")
_BEFORE = "before"
"""The folder with a finished run's earlier files while it is repeated."""
_CARRIED = ("step", "epoch", "restarts")  # facts of the status that persist unless given


class Status(StrEnum):
    """The status of a run."""

    running = "running"
    done = "done"
    diverged = "diverged"
    failed = "failed"
    interrupted = "interrupted"
    unreadable = "unreadable"  # never written: how a reader calls a run whose files are damaged


class RunStore:
    """One run's directory; the only writer of it is the process that holds its lock.

    `open` takes the lock. The other processes of a run `view` the directory: they write and read their parts of
    checkpoints and nothing else.
    """

    def __init__(self, path: Path, run_id: str | None, lock: int | None) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.run_id = run_id
        self.rejected_checkpoints: list[str] = []  # what the last call of `newest_checkpoint` found damaged
        self.new = False  # whether `open` has made it this run's
        self._lock = lock
        self._metrics = None if lock is None else LineFile(path / "metrics.jsonl")
        self._valid_steps: set[int] = set()  # checkpoints that this process has hashed
        before = self.peek(path) or {}
        self._place = {key: before.get(key, 0) for key in _CARRIED}

    @classmethod
    def open(cls, path: Path, run_id: str, config_yaml: str) -> Self:
        """Create the run's directory, or reopen it, as its only writer.

        A new directory gets the frozen configuration and the status `running`. A reopened one keeps both; a truncated
        line of metrics is removed, and a lost configuration is rewritten.

        Raises ConfigError if the directory belongs to another run or to something else, or is not writable;
        DirectoryTaken, a subclass, if another process is writing it.
        """
        refuse_foreign(path, run_id)
        try:
            make_folder(path, above=2)
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigError(
                f"run_dir={path} cannot be written ({error.strerror}): choose another folder, or change its "
                "permissions."
            ) from error
        try:
            take(lock, path)
            refuse_foreign(path, run_id)  # again, now under the lock
            for leftover in filter(is_leftover, os.listdir(path)):  # of a killed writer
                (path / leftover).unlink()
            new = recorded_id(path) is None
            if id_in_config(path) is None:
                write_text(path / "config.yaml", f"{HEADER}{run_id}\n{config_yaml}")
            store = cls(path, run_id, lock)
            store.new = new
        except BaseException:
            os.close(lock)
            raise
        if cls.peek(path) is None:
            store.set_status(Status.running)
        return store

    @classmethod
    def view(cls, path: Path) -> Self:
        """The directory as the other processes of a run see it: no lock, only parts of checkpoints."""
        return cls(path, recorded_id(path), None)

    @classmethod
    def peek(cls, path: Path) -> dict[str, Any] | None:
        """Read status.json without a lock; None if there is none. Never raises."""
        return read_json(path / "status.json")

    @classmethod
    def finished(cls, path: Path, run_id: str) -> Status | None:
        """done or diverged, if that is how this very run has ended and nothing is left to do. Never raises."""
        facts = cls.peek(path) or {}
        over = facts.get("run_id") == run_id and facts.get("status") in (Status.done, Status.diverged)
        return Status(facts["status"]) if over else None

    @classmethod
    def forget(cls, path: Path, run_id: str, config_yaml: str = "") -> None:
        """Set aside, into the folder `before`, what this run has stored, so that it can begin again, with this
        configuration if one is given.

        Raises ConfigError as `open` does. Killed half-way, it leaves a run that is not finished.
        """
        with cls.open(path, run_id, config_yaml) as store:
            shutil.rmtree(path / _BEFORE, ignore_errors=True)
            (path / _BEFORE).mkdir()
            if config_yaml:
                shutil.copy2(path / "config.yaml", path / _BEFORE)
                write_text(path / "config.yaml", f"{HEADER}{run_id}\n{config_yaml}")
            for name in _STORED:
                with suppress(FileNotFoundError):
                    (path / name).rename(path / _BEFORE / name)
            store.remove_checkpoints()

    def take_back(self) -> bool:
        """Put back what `forget` has set aside: the run is refused. Whether there was anything."""
        aside = self.path / _BEFORE
        if not (aside / "status.json").is_file():
            with suppress(OSError):
                aside.rmdir()
            return False
        for name in ("config.yaml", *reversed(_STORED)):  # the status last: until then the run is not finished
            if (self.path / name).is_dir():
                shutil.rmtree(self.path / name)
            with suppress(FileNotFoundError):
                (aside / name).rename(self.path / name)
        aside.rmdir()
        return True

    def remove_replaced(self) -> None:
        """Delete what `forget` has set aside: the run is finished again."""
        shutil.rmtree(self.path / _BEFORE, ignore_errors=True)

    def abandon(self) -> None:
        """Undo `open` of a `new` directory, which then belongs to no run. Other files stay."""
        for name in ("status.json", "config.yaml", "metrics.jsonl", LOCK, GITIGNORE):
            (self.path / name).unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()

    def set_status(self, status: Status, **facts: Any) -> None:
        """Replace status.json atomically: status, run_id, step, epoch, restarts, rows, updated, pid, host and `facts`.

        `step`, `epoch` and `restarts`, when not given, stay what they were; other facts are not carried over.

        Raises DirectoryLost if the directory is not the one that was opened, or a run that is over has lost its
        metrics.
        """
        assert self._metrics is not None, "only the process that holds the lock sets the status"
        self._place |= {key: facts.pop(key) for key in _CARRIED if key in facts}
        updated = datetime.now(UTC).isoformat(timespec="seconds")
        writer = {"updated": updated, "pid": os.getpid(), "host": socket.gethostname()}
        rows = {"rows": self._metrics.extent.num_lines}
        head = {"status": Status(status).value, "run_id": self.run_id, **self._place, **rows, **writer}
        with self.in_place(metrics=status in (Status.done, Status.diverged)):
            self._metrics.sync()
            write_json(self.path / "status.json", head | facts)

    @property
    def restarts(self) -> int:
        """Number of restarts of this run's processes after one of them died or hung."""
        return int(self._place["restarts"])

    @contextmanager
    def in_place(self, metrics: bool = True) -> Iterator[None]:
        """Guard writes into the directory: raise DirectoryLost if the lock or the metrics were moved or deleted, so
        that the output would be lost."""
        self._check_place(metrics)
        try:
            yield
        except OSError:
            self._check_place(metrics)
            raise

    def _check_place(self, metrics: bool) -> None:
        assert self._metrics is not None and self._lock is not None, "only the process that holds the lock writes"
        there = {LOCK: files.in_place(self._lock, self.path / LOCK)}
        if metrics:
            there[self._metrics.path.name] = self._metrics.in_place()
        lost = next((name for name, found in there.items() if not found), None)
        if lost is not None:
            what = f"{lost} in it was" if self.path.exists() else "it was"
            raise DirectoryLost(
                f"run_dir={self.path} cannot be written, because {what} deleted or replaced during the run: rerun the "
                "same command, which repeats what is lost, and leave the folder alone meanwhile."
            )

    def write_provenance(self, facts: dict[str, Any]) -> None:
        """Replace provenance.json atomically."""
        assert self._lock is not None, "only the process that holds the lock writes the provenance"
        write_json(self.path / "provenance.json", facts)

    def describe(self, metrics: Iterable[Metric]) -> None:
        """Replace metrics.json atomically: what the numbers in metrics.jsonl are, see `metadata`."""
        assert self._lock is not None, "only the process that holds the lock describes the metrics"
        write_metadata(self.path, metrics)

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        """Append rows with the keys of `metrics.COLUMNS`; `worker` is a number, 'worst', 'mean' or 'averaged'.

        `value` may be nan or infinite. Raises OSError if the disk is full; all whole rows before stay readable.
        """
        assert self._metrics is not None, "only the process that holds the lock writes metrics"
        lines = []
        for row in rows:
            assert set(ALWAYS) <= row.keys() <= set(COLUMNS), f"a row has the keys {COLUMNS}, not {tuple(row)}"
            lines.append({key: row[key] for key in COLUMNS if key in row})
        self._metrics.append(*lines)

    def save_checkpoint_part(self, step: int, part: str, tensors: dict[str, Any]) -> Written:
        """Write one process's part of the checkpoint of `step`; see `checkpoints.save_part`.

        Raises DirectoryLost if the process that holds the lock finds another directory than the one it opened.
        """
        with self.in_place() if self._metrics is not None else nullcontext():
            return checkpoints.save_part(self.checkpoints, step, part, tensors)

    def commit_checkpoint(self, step: int, parts: Mapping[str, Written], meta: dict[str, Any]) -> None:
        """Make the parts of `step` a checkpoint, once all of them are written; keep the one before it, too.

        `parts` is what `save_checkpoint_part` returned for each of them.

        Raises OSError if a part is missing or the disk is full; the previous checkpoint is valid then. DirectoryLost if
        the directory or the metrics are not those that were opened.
        """
        assert self._metrics is not None, "only the process that holds the lock commits a checkpoint"
        with self.in_place():
            self._metrics.sync()
            checkpoints.commit(self.checkpoints, step, parts, meta, self.run_id, self._metrics.extent)
        self._valid_steps.add(step)
        checkpoints.prune(self.checkpoints, step, self._valid_steps, self.run_id)

    def newest_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint of this run with valid parts and complete metrics.

        `rejected_checkpoints` lists the errors of newer ones.
        """
        found, self.rejected_checkpoints = checkpoints.newest(self.checkpoints, self.run_id, self._metrics)
        return found

    def remove_checkpoints(self) -> None:
        """Delete all checkpoints, for example of a run that is done."""
        assert self._lock is not None, "only the process that holds the lock removes checkpoints"
        self._valid_steps.clear()
        checkpoints.remove(self.checkpoints)

    def close(self) -> None:
        """Give the lock back. Harmless when called twice."""
        if self._metrics is not None and self._lock is not None:
            self._metrics.close()
            os.close(self._lock)
        self._metrics = self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FoundRun(NamedTuple):
    """A run directory and what has become of its run."""

    run_id: str
    path: Path
    status: Status
    facts: dict[str, Any]
    """Its status.json."""
    reason: str = ""
    """Why it is unreadable."""


def find_runs(results_dir: Path, left_out: list[str] | None = None) -> list[FoundRun]:
    """Return the runs in `results_dir/runs` and in `results_dir`, sorted by path, or the run whose directory it is.

    A run counts once, in a folder named by its ID or by its `run_dir=`: the names of copies, renamed folders and links
    are appended to `left_out`. A run that is said to be `running` but whose writer is dead is `interrupted`.
    """
    if not os.path.isdir(results_dir):  # nor is a name that is too long
        return []
    if os.path.exists(results_dir / "status.json"):
        return [found_run(results_dir)]
    found = dict[str, FoundRun]()
    for path in [*sorted(results_dir.glob("runs/*")), *sorted(results_dir.glob("*"))]:
        run = found_run(path)
        if run.reason and recorded_id(path) is None and not re.fullmatch("[0-9a-f]{12}", path.name):
            continue  # a folder of something else
        if path.name in (run.run_id, _own_name(path)) and not path.is_symlink() and run.run_id not in found:
            found[run.run_id] = run
        elif left_out is not None:
            left_out.append(path.name)
    return list(found.values())


def _own_name(path: Path) -> str:
    """Return the name of the directory that the configuration gives to its run (`run_dir=`); '' if it gives none."""
    import yaml

    try:
        text = (path / "config.yaml").read_text(encoding="utf-8")
        found = re.search(r"^run_dir: .+\n(  .*\n)*", text, re.M)  # a long text has several lines
        return Path(str(yaml.safe_load(found[0])["run_dir"])).name if found else ""
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return ""


def found_run(path: Path) -> FoundRun:
    """The run that a directory belongs to."""
    run_id = recorded_id(path) or path.name
    try:
        facts = load_json(path / "status.json")
        if facts.get("run_id") != run_id or facts.get("status") not in list(Status):
            raise ConfigError(f"{path / 'status.json'} is damaged: it is not the status of run {run_id}.")
    except ConfigError as error:
        return FoundRun(run_id, path, Status.unreadable, {}, str(error))
    status = Status(facts["status"])
    if status == Status.running and not is_locked(path / LOCK):
        status = Status.interrupted
    return FoundRun(run_id, path, status, facts)
