"""Files of JSON objects, one a line, that survive a kill at any moment: metrics.jsonl and what other jobs add to."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

from decentral.errors import ConfigError
from decentral.store.files import decode, encode

_BLOCK_BYTES = 1 << 16


class LineFile:
    """The writing end. A line that was cut short when an earlier writer died is removed on opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._size = _whole_lines(self._descriptor)
        os.ftruncate(self._descriptor, self._size)

    @property
    def known(self) -> list[dict[str, Any]]:
        """All lines so far, those of earlier writers first."""
        return read_lines(self.path)

    def append(self, values: dict[str, Any]) -> None:
        """Write a line with a single system call: after a kill -9 every written line is there.

        Raises OSError if the disk is full; the line that did not fit is taken back.
        """
        line = json.dumps(encode(values), allow_nan=False).encode() + b"\n"
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


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; none if there is no file. An unterminated last line is not read.

    Raises ConfigError if a finished line is damaged.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [_read(line, number, path) for number, line in enumerate(lines, 1)]


def damaged(path: Path, number: int) -> ConfigError:
    """What to raise for a line that is not what was written."""
    return ConfigError(
        f"line {number} of {path} is damaged: delete the folder {path.parent} and give the command again, which "
        "computes it anew."
    )


def _read(line: bytes, number: int, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise damaged(path, number) from error
    if not isinstance(value, dict):
        raise damaged(path, number)
    decoded: dict[str, Any] = decode(value)
    return decoded


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
