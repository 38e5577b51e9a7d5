"""CSV files that a cluster is described by."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import NamedTuple

from decentral.cluster.settings import LONGEST_S, SLOWEST_GBPS
from decentral.errors import ConfigError
from decentral.store.files import at_home


class Line(NamedTuple):
    """Its cells, and how messages call it: 'line 3 of cluster.links.file=links.csv'."""

    said: str
    cells: list[str]


def csv_path(key: str, name: str) -> Path:
    """Where the file is that the setting `key` names. Raises ConfigError if there is none."""
    path = at_home(name)
    if not path.is_file():
        raise ConfigError(f"{key}={name} is not a file (looked for {path.absolute()}).")
    return path


def read_lines(key: str, name: str, path: Path) -> list[Line]:
    """The lines that are not empty of the file that the setting `key` names. Raises ConfigError if it is no CSV in
    UTF-8."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            return [
                Line(f"line {reader.line_num} of {key}={name}", [cell.strip() for cell in row]) for row in reader if row
            ]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{key}={name} cannot be read as CSV: {error}.") from error


def check_columns(line: Line, columns: list[str]) -> None:
    """Raise ConfigError unless the line has these columns."""
    if len(line.cells) != len(columns):
        raise ConfigError(f"{line.said} has {len(line.cells)} columns: it has to be {','.join(columns)}.")


def index(line: Line, cell: str, what: str, below: float = math.inf) -> int:
    """A number 0, 1, 2, ... Raises ConfigError if the cell of the line is none, or not below what it has to be."""
    if not (cell.isascii() and cell.isdigit() and int(cell) < below):
        numbers = "0, 1, 2, ..." if below == math.inf else f"0 to {below - 1} with num_workers={below}"
        raise ConfigError(f"{line.said} has '{cell}' where the number of a {what} should be, {numbers}.")
    return int(cell)


def seconds(line: Line, cell: str) -> float:
    """A duration. Raises ConfigError if the cell of the line is none."""
    return number(line, cell, f"a number of seconds from 0 to {LONGEST_S:g}", 0.0, LONGEST_S)


def gbps(line: Line, cell: str) -> float:
    """A bandwidth, which may be inf. Raises ConfigError if the cell of the line is none."""
    return number(line, cell, f"a bandwidth in Gbit/s, at least {SLOWEST_GBPS:g},", SLOWEST_GBPS)


def number(line: Line, cell: str, what: str, least: float, most: float = math.inf) -> float:
    """A number from `least` to `most`. Raises ConfigError if the cell of the line is none."""
    if not cell:
        raise ConfigError(f"{line.said} has a hole where {what} should be.")
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise ConfigError(f"{line.said} has '{cell}' where {what} should be.")
    return value
