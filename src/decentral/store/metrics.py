"""metrics.jsonl and other files of JSON lines, which survive a kill at any moment, and what the numbers in them are."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from decentral.errors import ConfigError
from decentral.store.files import decode, encode, in_place, read_json, unpacked, write_json
from decentral.store.schema import ROW

if TYPE_CHECKING:
    from hashlib import _Hash


_BLOCK_BYTES = 1 << 16


class Extent(NamedTuple):
    """A prefix of a file: the number of lines, and their hash."""

    num_lines: int
    sha256: str


class LineFile:
    """The writing end. A line that was cut short when an earlier writer died is removed on opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        self._size = _whole_lines(self._descriptor)
        os.ftruncate(self._descriptor, self._size)
        self._digest = hashlib.sha256()
        self._num_lines = _add_lines(self._descriptor, None, self._digest)

    @property
    def known(self) -> list[dict[str, Any]]:
        """All lines so far, those of earlier writers first."""
        return read_lines(self.path)

    def append(self, *values: dict[str, Any]) -> None:
        """Write a line, or several, with a single system call: after a kill -9 every written line is there.

        Raises OSError if the disk is full; the line that did not fit is taken back.
        """
        lines = "".join(_written(each) + "\n" for each in values).encode()
        written = os.write(self._descriptor, lines)
        whole = written if written == len(lines) else lines.rfind(b"\n", 0, written) + 1
        self._size += whole
        self._num_lines += lines.count(b"\n", 0, whole)
        self._digest.update(lines[:whole])
        if whole < len(lines):
            os.ftruncate(self._descriptor, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def in_place(self) -> bool:
        """Return whether the path still leads to the file that is written."""
        return in_place(self._descriptor, self.path)

    @property
    def extent(self) -> Extent:
        """Return the extent of all lines so far."""
        return Extent(self._num_lines, self._digest.hexdigest())

    def extent_of(self, num_lines: int) -> Extent:
        """Return the extent of the first `num_lines` lines in the current file, or of fewer if there are fewer."""
        digest = hashlib.sha256()
        return Extent(_add_lines(self._descriptor, num_lines, digest), digest.hexdigest())

    def sync(self) -> None:
        """Survive a power cut, too."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; later calls of `append` fail."""
        os.close(self._descriptor)


def lines_written(path: Path) -> bool:
    """Return whether the file exists, compressed or not."""
    return path.exists() or path.with_name(path.name + ".gz").exists()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file, or of its compressed copy `<name>.gz`; none if there is neither. An unterminated last
    line is not read.

    Raises ConfigError if a finished line is damaged.
    """
    return _parsed(path, _stored(path))


def _stored(path: Path) -> list[bytes]:
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} is not a regular file: remove it, or its folder.")
        content = path.read_bytes()
    except FileNotFoundError:
        copy = path.with_name(f"{path.name}.gz")
        try:
            content = unpacked(copy) if copy.is_file() else b""
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{copy} is damaged ({error}): delete the folder {path.parent} and rerun the command."
            ) from None
    return content.split(b"\n")[:-1]


def _parsed(path: Path, every: list[bytes], having: bytes = b"") -> list[dict[str, Any]]:
    """The values of lines. `having`: only of lines with these bytes, unless none has them or one is damaged."""
    lines = [line for line in every if having in line] if having else every
    try:
        values = json.loads(b"[%b]" % b",".join(lines))  # much faster than one by one, where nothing is damaged
    except (ValueError, RecursionError):
        values = []
    is_whole = len(values) == len(lines) and all(isinstance(value, dict) for value in values)
    if having and not (lines and is_whole):
        return _parsed(path, every)
    if not is_whole:
        return [_read(line, number, path) for number, line in enumerate(lines, 1)]
    return [  # few lines have words that stand for numbers
        decode(value) if b'nan"' in line or b'inf"' in line else value
        for line, value in zip(lines, values, strict=True)
    ]


def damaged(path: Path, number: int) -> ConfigError:
    """Return the error for a line that differs from the written one."""
    return ConfigError(f"line {number} of {path} is damaged: delete the folder {path.parent} and rerun the command.")


_ENCODER = json.JSONEncoder(allow_nan=False)


def _written(values: dict[str, Any]) -> str:
    """One line, less its end."""
    try:
        return _ENCODER.encode(values)
    except ValueError:  # numbers that are not finite
        return _ENCODER.encode(encode(values))


def _read(line: bytes, number: int, path: Path) -> dict[str, Any]:
    try:
        value = decode(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise damaged(path, number) from error
    if not isinstance(value, dict):
        raise damaged(path, number)
    return value


def _whole_lines(descriptor: int) -> int:
    """The number of bytes up to and including the last newline."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _add_lines(descriptor: int, most: int | None, digest: _Hash) -> int:
    """Add the lines of an open file to a hash, from the first one, at most `most`; return their number."""
    count = 0
    with open(os.dup(descriptor), "rb") as file:
        file.seek(0)
        for line in islice(file, most):
            digest.update(line)
            count += 1
    return count


_FILE = "metrics.json"

AXES = {
    "step": "step",
    "epoch": "epoch",
    "wall_s": "training time (s)",
    "bytes_sent": "bytes sent by all workers",
    "simulated_s": "simulated time (s)",
    "tokens": "tokens of all workers",
}
"""The x axes of curves: key in metrics.jsonl, and column of curves.csv -> description.

`wall_s` is training time without evaluation; `simulated_s` is time in a virtual cluster; `bytes_sent` and `tokens` (of
task=language, padding included) are totals of all workers. An axis added here can be recorded with every evaluation, by
runs that have it, and collected, plotted and used as a criterion.
"""


@dataclass(frozen=True)
class Metric:
    """A number that evaluation gives for a model: the accuracy on test data, say.

    split             what it is taken on: test, train, objective, model
    name              accuracy, loss, suboptimality
    larger_is_better  None: neither; it describes, and judges nothing
    unit              'nats', 's'; '%' for a fraction of 1 that people read in percent
    chance            what guessing gives, as a fraction where `unit` is '%'; None where there is no such thing
    may_lack          whether nan says that there is nothing to tell, as of a class without examples, and is not
                      recorded; if another metric is not finite, a run has diverged
    own               whether it is a function of the user's, which may be nan where models are finite: recorded, and
                      no divergence
    class_name        name of the class c whose number ends the metric's name, as in accuracy_of_class_c; '' if unknown
    """

    split: str
    name: str
    larger_is_better: bool | None = False
    unit: str = ""
    chance: float | None = None
    may_lack: bool = False
    own: bool = False
    class_name: str = ""

    @property
    def percent(self) -> bool:
        """True for a fraction that is read in percent."""
        return self.unit == "%"

    @property
    def words(self) -> str:
        """Name of the metric in words, for example 'test accuracy'."""
        words = f"{self.split} {self.name.replace('_', ' ')}"
        return f"{words.rpartition(' ')[0]} {self.class_name}" if self.class_name else words

    @property
    def label(self) -> str:
        """Name of the metric with its unit if it is read in percent, for example 'test accuracy (%)'."""
        return self.words + " (%)" * self.percent

    def format(self, value: float, digits: int = 3) -> str:
        """The value as a person reads it: '81.3 %' or '3.42e-07', and with four digits '81.25 %' or '3.415e-07'."""
        return f"{100 * value:.{digits - 2}f} %" if self.percent else f"{value:.{digits}g}"


def write_metadata(run_dir: Path, metrics: Iterable[Metric]) -> None:
    """Replace `run_dir/metrics.json` atomically; the first metric is what the run is judged by."""
    known = [asdict(metric) for metric in metrics]
    for one in known:
        del one["may_lack"], one["own"], one["class_name"]  # of interest to evaluations alone
    write_json(run_dir / _FILE, {"metrics": known})


def read_metadata(run_dir: Path, measured: Iterable[tuple[str, str]] = ()) -> dict[tuple[str, str], Metric]:
    """(split, name) -> metric: those of the run's file, in its order, then all others of `measured`, of which nothing
    else is known. Never raises."""
    keys = {field.name for field in fields(Metric)}
    listed = (read_json(run_dir / _FILE) or {}).get("metrics")
    found = {}
    for one in listed if isinstance(listed, list) else []:
        if isinstance(one, dict) and isinstance(one.get("split"), str) and isinstance(one.get("name"), str):
            found[one["split"], one["name"]] = Metric(**{key: one[key] for key in keys & one.keys()})
    found |= {key: Metric(*key, larger_is_better=None) for key in measured if key not in found}
    for number, name in enumerate((read_json(run_dir / "names.json") or {}).get("class", [])):
        if metric := found.get(key := ("test", f"accuracy_of_class_{number}")):
            found[key] = replace(metric, class_name=name)
    return found


ALWAYS = ("step", "epoch", "worker", "split", "metric", "value")
COLUMNS = tuple(dict.fromkeys((*ALWAYS, *AXES)))
"""Keys of a row, in their order. A row need not have a place on each of the axes, but on those of step and epoch."""
_READ = frozenset(ALWAYS) - {"epoch"}
_TYPES = [(key, get_args(hint) or (hint,)) for key, hint in ROW.items()]


def read_metrics(path: Path, **wanted: Any) -> list[dict[str, Any]]:
    """The rows of a run directory (or of a metrics.jsonl), each (step, worker, split, metric) once.

    `wanted` are values of adjacent keys, in the order of a row: other rows may then be left out, which saves time.

    An unterminated last line is dropped: its writer died, or is about to finish it. A resumed run writes some rows
    again; the last one counts. No file means no rows. Raises ConfigError if a finished line is damaged, or if a run
    that is done or diverged had more rows.
    """
    file = path / "metrics.jsonl" if path.is_dir() else path
    rows: dict[tuple, dict[str, Any]] = {}
    lines, fitting = _stored(file), set[tuple]()
    for number, row in enumerate(_parsed(file, lines, json.dumps(wanted)[1:-1].encode()), 1):
        shape = *row, *map(type, row.values())
        if shape not in fitting:
            if not row.keys() >= _READ or not all(type(row[key]) in types for key, types in _TYPES if key in row):
                raise damaged(file, number)
            fitting.add(shape)
        rows[row["step"], row["worker"], row["split"], row["metric"]] = row
    if path.is_dir():
        _refuse_cut(file, lines)
    return list(rows.values())


def _refuse_cut(file: Path, lines: list[bytes]) -> None:
    """Raise ConfigError if the file was cut after the run had ended: by the number of rows in its status, or by the
    last step where a run of an older version did not say it."""
    facts = read_json(file.parent / "status.json") or {}
    if facts.get("status") not in ("done", "diverged"):
        return
    rows, steps, last = facts.get("rows"), facts.get("step", 0), None
    if rows is None and lines and facts["status"] == "done":
        last = _read(lines[-1], len(lines), file).get("step")
    is_cut = len(lines) < rows if rows is not None else isinstance(last, int) and last < steps
    if is_cut:
        where = f"it has {len(lines)} of {rows} rows" if rows is not None else f"it ends at step {last} of {steps}"
        raise ConfigError(f"{file} is incomplete: {where}. Delete the folder {file.parent} and rerun the command.")
