"""Lines and rows of text files, plain or compressed."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from decentral.errors import ConfigError, suggest
from decentral.store.digests import file_digest

MOST_CHARACTERS = 10_000
"""In a line: more are no sentence."""


def find(folder: str | Path, name: str, key: str) -> Path:
    """The file `name` in the folder, or `name`.gz. Raises ConfigError if there is neither."""
    for path in (Path(folder) / name, Path(folder) / f"{name}.gz"):
        if path.is_file():
            return path
    raise ConfigError(f"{key}={folder}: there is no file {name} (or {name}.gz) in {Path(folder).absolute()}.")


def read_lines(path: Path, key: str) -> list[str]:
    """The lines of a UTF-8 text file, plain or .gz, without what ends them. Only a newline ends a line.

    Raises ConfigError, with file and line, for what is not UTF-8, and for lines that are no sentences.
    """
    content = _content(path, key)
    lines = content.split(b"\n")
    if not lines[-1]:
        del lines[-1]
    found = []
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{key}: {path}, line {number} is not UTF-8 (byte 0x{line[error.start]:02x} at place "
                f"{error.start + 1}): convert the file, as with iconv -t UTF-8."
            ) from None
        if len(text) > MOST_CHARACTERS:
            raise ConfigError(
                f"{key}: {path}, line {number} has {len(text):,} characters, and more than {MOST_CHARACTERS:,} are no "
                "sentence: split the line, or take it out."
            )
        found.append(text)
    return found


def count_lines(path: Path, key: str) -> int:
    """How many lines there are."""
    return _count(path, key, file_digest(path))


@lru_cache(maxsize=64)  # a study asks with each of its configurations
def _count(path: Path, key: str, _digest: str) -> int:
    content = _content(path, key)
    return content.count(b"\n") + (not content.endswith(b"\n") and bool(content))


def _content(path: Path, key: str) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{key}: {path} cannot be read ({error}): is it complete?") from error


class Row(NamedTuple):
    """What stands in the columns that were asked for."""

    where: str
    """The file and the line in which it ends, in words."""
    values: list[str]


def utf8_lines(path: Path) -> Generator[str]:
    """The lines of a file, with their ends. Raises ConfigError for bytes that are not UTF-8, with the line."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise ConfigError(
                        f"data.path: {path}, line {number}: byte {error.start + 1} is not UTF-8: convert the file, for "
                        "example with iconv."
                    ) from None
    except OSError as error:
        raise ConfigError(f"data.path: {path} cannot be read: {error.strerror or error}.") from error


def read_rows(path: Path, columns: Sequence[str] | Sequence[int]) -> Iterator[Row]:
    """These columns of a file, row by row: of CSV by name (the first line is the header) or, for files without a
    header, by number from 0; of JSONL by name.

    Raises ConfigError for a missing column, a row that is too short or longer than the header, a value that is no text
    and no number, or what is no CSV or JSON, with file and line.
    """
    with closing(utf8_lines(path)) as lines:  # at once, not when what is wrong with a line is forgotten
        yield from (_json_rows if path.suffix == ".jsonl" else _csv_rows)(path, lines, columns)


def _csv_rows(path: Path, lines: Iterator[str], columns: Sequence[str] | Sequence[int]) -> Iterator[Row]:
    reader = csv.reader(lines, strict=True)
    try:
        header = next(reader, []) if any(isinstance(column, str) for column in columns) else []
        places = [_place(path, column, header) if isinstance(column, str) else column for column in columns]
        for row in reader:
            if not row:
                continue
            where = f"{path}, line {reader.line_num}"
            if max(places) >= len(row):
                raise ConfigError(
                    f"data.path: {where}: there are {len(row)} columns, and {max(places) + 1} are needed: quote texts "
                    "with commas in them."
                )
            if header and len(row) > len(header):
                raise ConfigError(
                    f"data.path: {where}: there are {len(row)} columns, and line 1 names {len(header)}: quote texts "
                    "with commas in them."
                )
            yield Row(where, [row[place] for place in places])
    except csv.Error as error:
        raise ConfigError(
            f"data.path: {path}, line {reader.line_num}: this is no CSV that can be read ({error}): quote texts, and "
            f"keep each below {csv.field_size_limit():,} characters."
        ) from None


def _place(path: Path, column: str, header: list[str]) -> int:
    if not header:
        raise ConfigError(f"data.path: {path}, line 1 is empty: it has to name the columns, such as '{column}'.")
    if column not in header:
        raise ConfigError(f"data.path: {path}, line 1: there is no column '{column}'.{suggest(column, header)}")
    if header.count(column) > 1:
        raise ConfigError(f"data.path: {path}, line 1: there are {header.count(column)} columns '{column}': name one.")
    return header.index(column)


def _json_rows(path: Path, lines: Iterator[str], columns: Sequence[str] | Sequence[int]) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"data.path: {where}: this is no JSON that can be read ({error}).") from None
        if not isinstance(found, dict):
            raise ConfigError(f"data.path: {where}: a line has to be a JSON object with keys, not {line.strip()[:20]}.")
        for column in map(str, columns):
            if column not in found:
                raise ConfigError(f"data.path: {where}: there is no '{column}'.{suggest(column, list(found))}")
        yield Row(where, [_plain(where, column, found[column]) for column in map(str, columns)])


def _plain(where: str, column: str, value: object) -> str:
    """A text, or a number or truth value as text."""
    if not isinstance(value, str | int | float) or value != value:
        raise ConfigError(
            f"data.path: {where}: '{column}' is {json.dumps(value)[:40]}, but it has to be a text or a number."
        )
    return str(value)
