"""Text files of one sentence a line."""

from __future__ import annotations

import gzip
import zlib
from functools import lru_cache
from pathlib import Path

from decentral.errors import ConfigError
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
