"""Paths as users write them, and writing files so that a reader, or a later start, never sees half of one."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import gzip
import io
import json
import math
import os
import re
import secrets
import time
import zlib
from collections.abc import Iterable, Iterator
from numbers import Real
from pathlib import Path
from typing import Any, BinaryIO

from decentral.errors import ConfigError
from decentral.store.schema import FILES, misfit
from decentral.terminal.console import printable

_MOST_BYTES = 1 << 28
PACKED_FROM_BYTES = 20_000
"""Size from which a table of runs is packed."""
GITIGNORE = ".gitignore"
_FORMULAS = ("=", "+", "-", "@", "\t")
_NOT_JSON = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def at_home(path: str | Path) -> Path:
    """Return the path with ~ expanded to the user's home; ~x is unchanged if no such user exists."""
    return Path(os.path.expanduser(path))


def encode(value: Any) -> Any:
    """`value` with its non-finite floats as the strings 'nan', 'inf' and '-inf', which JSON has no numbers for."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, dict):
        return {key: encode(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [encode(v) for v in value]
    return value


def decode(value: Any) -> Any:
    """The inverse of `encode` (tuples come back as lists)."""
    if isinstance(value, str):
        return _NOT_JSON.get(value, value)
    if isinstance(value, dict):
        return {key: v if type(v) in (int, float) else decode(v) for key, v in value.items()}
    if isinstance(value, list):
        return [decode(v) for v in value]
    return value


def write_text(path: Path, text: str) -> None:
    """Replace `path` atomically and durably; see `write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` atomically and durably; see `replacing`."""
    with replacing(path) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` at the end of the block, atomically and durably.

    If something fails (disk full) the old file stays. Until then the file has a random name next to `path`, so no link
    can be planted there; a link at `path` is replaced, not followed.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, 0o666), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # of a full disk, say, which names no file
        raise
    sync_directory(path.parent)


def make_folder(path: Path, above: int = 0) -> None:
    """Create a folder with its parents. Git ignores the topmost new one of it and the `above` parents next to it, if no
    such parent is ignored already."""
    new = [folder for folder in [path, *path.parents[:above]] if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    if new and not any((folder / GITIGNORE).exists() for folder in path.parents[:above]):
        (new[-1] / GITIGNORE).write_text("# Created by decentral; delete this file to commit what is here.\n*\n")


def check_name(name: Any, what: str) -> None:
    """Raise ConfigError unless this is the plain name of a file: letters, digits, spaces and ._+=,- in one folder."""
    if not isinstance(name, str) or not re.fullmatch(r"\w(?:[\w .+=,-]{0,98}[\w+=,-])?", name):
        shown = name if len(str(name)) < 60 else f"{str(name)[:60]}..."
        raise ConfigError(
            f"{what}={shown!r} is not a plain file name: use at most 100 letters, digits and ._+=,- without a folder."
        )


def refuse_links(directory: Path, above: int = 0) -> None:
    """Raise ConfigError if a folder to write into, or one of its `above` parents, is a link."""
    link = next((path for path in [directory, *directory.parents[:above]] if path.is_symlink()), None)
    if link is not None:
        raise ConfigError(f"{link} is a link, and results are only written into their own folder: remove the link.")


def is_leftover(name: str) -> bool:
    """Return whether a file of this name is what `replacing` leaves behind if it is killed."""
    return re.fullmatch(r"\.[0-9a-f]{16}\.tmp", name) is not None


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Hold the lock of the directory, if its file system has locks; others wait for it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace `path` atomically by `value` as standard JSON."""
    write_text(path, json.dumps(encode(value), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`; None if there is no such file, or `load_json` refuses it."""
    with contextlib.suppress(ConfigError):
        return load_json(path)
    return None


def load_json(path: Path) -> dict[str, Any]:
    """The object in `path`. Raises ConfigError if there is no such file, it is a pipe, enormous, or no whole JSON
    object, or a value has another type than in `schema.FILES`."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path} is missing, or it is not a file of at most {_MOST_BYTES:,} bytes.")
        value = decode(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} is damaged: {' '.join(str(error).split())}.") from None
    if wrong := "it is not an object" if not isinstance(value, dict) else misfit(value, FILES.get(path.name, {}), ""):
        raise ConfigError(f"{path} is damaged: {wrong}.")
    return dict(value)


def csv_text(header: Iterable[Any], rows: Iterable[Iterable[Any]], as_is: bool = False) -> str:
    """A table as the text of a CSV file, each cell by `csv_cell` unless it is wanted `as_is`."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for row in (header, *rows):
        writer.writerow(row if as_is else map(csv_cell, row))
    return file.getvalue()


def csv_cell(value: Any) -> Any:
    """A text without control characters, and with ' before what a spreadsheet would carry out as a formula."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text[:1] in _FORMULAS and not _is_number(text) and text != "-" else text


def from_csv_cell(text: str) -> str:
    """The inverse of `csv_cell`, without control characters."""
    is_escaped = text[:1] == "'" and text[1:2] in _FORMULAS and not _is_number(text[1:])
    return printable(text[1:] if is_escaped else text)


def _is_number(text: str) -> bool:
    return (
        re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?( [a-z].*)?|[+-]?(inf|nan)", text, re.IGNORECASE) is not None
    )


def write_table(path: Path, text: str) -> None:
    """Replace the table NAME.csv atomically: as NAME.csv.gz if it is long, which pandas reads as it is."""
    content, packed = text.encode(), _packed(path)
    if len(content) < PACKED_FROM_BYTES:
        write_bytes(path, content)
        packed.unlink(missing_ok=True)
    else:
        write_bytes(packed, gzip.compress(content, mtime=0))
        path.unlink(missing_ok=True)


def remove_table(path: Path) -> None:
    """Remove the table NAME.csv, packed or not."""
    for file in (path, _packed(path)):
        file.unlink(missing_ok=True)


def stored_table(path: Path) -> Path | None:
    """The file of the table NAME.csv, packed or not; None if there is none. Raises ConfigError if there are both."""
    found = [file for file in (path, _packed(path)) if file.is_file()]
    if len(found) > 1:
        raise ConfigError(f"{path} and {found[1].name} are both there, and either may be the newer: remove the other.")
    return found[0] if found else None


def read_table(path: Path) -> str:
    """The text of the table NAME.csv, packed or not. Raises OSError or ValueError if there is none or it is damaged,
    ConfigError if it is enormous once it is unpacked."""
    file = stored_table(path)
    if file is None:
        raise FileNotFoundError(f"neither {path} nor {path.name}.gz is there")
    return (file.read_bytes() if file == path else unpacked(file)).decode()


def unpacked(file: Path) -> bytes:
    """The content of a .gz file. Raises OSError or ValueError if it is damaged, ConfigError if it is enormous once it
    is unpacked."""
    try:
        with gzip.open(file) as packed:  # a few bytes of it may become any number
            content = packed.read(_MOST_BYTES + 1)
    except (EOFError, zlib.error) as error:
        raise ValueError(str(error)) from None
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"{file} has more than {_MOST_BYTES:,} bytes after decompression: remove it.")
    return content


def _packed(path: Path) -> Path:
    return path.with_name(f"{path.name}.gz")


def sync_directory(path: Path) -> None:
    """Make renames in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def in_place(descriptor: int, path: Path) -> bool:
    """Return whether `path` still leads to this open file, which may have been deleted, moved or replaced."""
    try:
        there, ours = os.stat(path), os.fstat(descriptor)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def try_lock(descriptor: int) -> bool:
    """Take the exclusive lock of an open file; False if another process keeps it for longer than 0.1 s.

    It waits that long because `is_locked` holds the lock for an instant to see whether it is free.
    """
    for _ in range(10):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.01)
    return False


def is_locked(path: Path) -> bool:
    """Return whether a live process holds the lock of this file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)


def natural_order(names: Iterable[Any]) -> list[Any]:
    """Return names in natural order: numbers by value, also those written as text; digits in a text as numbers, w2
    before w10. Names of types that cannot be compared keep their order."""
    given = list(names)
    try:
        return sorted(sorted(given), key=_natural)
    except TypeError:
        return given


def _natural(name: Any) -> tuple[Any, ...]:
    if isinstance(name, tuple):
        return tuple(map(_natural, name))
    if not isinstance(name, str | Real):  # as sorted before
        return ()
    text = str(name)
    parts = [int(part) if number % 2 else part for number, part in enumerate(re.split(r"(\d+)", text))]
    with contextlib.suppress(ValueError):
        if math.isfinite(value := float(name)):
            return 1, value, parts, text
    return 2, parts, text
