"""metrics.jsonl: long rows, appended one write per line."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from decentral.errors import ConfigError
from decentral.store.files import decode, encode

COLUMNS = ("step", "epoch", "worker", "split", "metric", "value", "wall_s", "bytes_sent")
_BLOCK_BYTES = 1 << 16


class MetricsFile:
    """The writing end. A line that was cut short when an earlier writer died is removed on opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._size = _whole_lines(self._descriptor)
        os.ftruncate(self._descriptor, self._size)

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        """Write each row with a single system call: after a kill -9 every written row is there.

        Raises OSError if the disk is full; the line that did not fit is taken back.
        """
        for row in rows:
            assert row.keys() == set(COLUMNS), f"a row has the keys {COLUMNS}, not {tuple(row)}"
            line = json.dumps(encode({key: row[key] for key in COLUMNS}), allow_nan=False).encode() + b"\n"
            written = os.write(self._descriptor, line)
            if written < len(line):
                os.ftruncate(self._descriptor, self._size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            self._size += written

    def sync(self) -> None:
        """Survive a power cut, too."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; later calls of `append` fail."""
        os.close(self._descriptor)


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


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a run directory (or of a metrics.jsonl), each (step, worker, split, metric) once.

    An unterminated last line is dropped: its writer died, or is about to finish it. A resumed run writes some rows
    again; the last one counts. No file means no rows. Raises ConfigError if a finished line is damaged.
    """
    file = path / "metrics.jsonl" if path.is_dir() else path
    try:
        lines = file.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    rows: dict[tuple, dict[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            row["value"] = decode(row["value"])
            rows[row["step"], row["worker"], row["split"], row["metric"]] = row
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"line {number} of {file} is damaged: delete the folder {file.parent} and give the command of the run "
                "again, which computes it anew."
            ) from error
    return list(rows.values())
