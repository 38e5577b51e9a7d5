"""Settings of a cluster, required by choice, and CSV files."""

from __future__ import annotations

import csv
import math
from dataclasses import fields
from typing import Any, NamedTuple

from decentral.errors import ConfigError
from decentral.settings import check, setting
from decentral.store.files import at_home

LONGEST_S = 1e9
"""About 32 years: sums of durations stay finite and resolve microseconds."""
SLOWEST_GBPS = 1e-12
"""Lowest bandwidth: a bit per quarter of an hour."""


def optional(**limits: Any) -> Any:
    """Declare an optional setting."""
    return setting(None, older=None, **limits)


def duration() -> Any:
    """Declare an optional number of seconds."""
    return optional(above=0, at_most=LONGEST_S, hint="seconds")


def latency() -> Any:
    """Declare an optional latency in seconds, which may be 0."""
    return optional(at_least=0, at_most=LONGEST_S, hint="seconds")


def bandwidth() -> Any:
    """Declare an optional number of Gbit/s."""
    return optional(at_least=SLOWEST_GBPS, finite=False, hint="Gbit/s")


def check_choice(own: Any, where: str, choice: str, besides: tuple[str, ...] = ()) -> None:
    """Check that exactly the settings needed by a choice are given.

    own        dataclass in which None means "not given"
    where      its position in the configuration, such as cluster.compute
    choice     the key of it that is chosen, an Enum whose values are the names of what each needs
    choice     its key with an Enum value, whose values name the needed settings

    Raises ConfigError, also for an invalid value.
    """
    chosen = getattr(own, choice)
    said = f"{where}.{choice}={chosen.name}"
    for key in chosen.value:
        if getattr(own, key) is None:
            raise ConfigError(f"{said} needs {where}.{key}, which is not given: set {where}.{key}=...")
    for key in (f.name for f in fields(own)):
        value = getattr(own, key)
        if value is not None and key not in (choice, *chosen.value, *besides):
            raise ConfigError(
                f"{where}.{key}={value} has no effect with {said}: leave it out, or set {where}.{key}=null."
            )
    check(type(own), vars(own), where)


class Line(NamedTuple):
    """A line of a file: its cells, and its name in messages: 'line 3 of cluster.links.file=links.csv'."""

    said: str
    cells: list[str]

    def check_columns(self, columns: list[str]) -> None:
        """Raise ConfigError unless the line has these columns."""
        if len(self.cells) != len(columns):
            raise ConfigError(f"{self.said} has {len(self.cells)} columns: use {','.join(columns)}.")

    def integer(self, place: int, what: str, below: float = math.inf) -> int:
        """Return an integer >= 0. Raises ConfigError if the cell is not one, or not smaller than `below`."""
        cell = self.cells[place]
        if not (cell.isascii() and cell.isdigit() and int(cell) < below):
            numbers = "0, 1, 2, ..." if below == math.inf else f"0 to {below - 1} with num_workers={below}"
            raise ConfigError(f"{self.said} has '{cell}' instead of the number of a {what}, {numbers}.")
        return int(cell)

    def seconds(self, place: int) -> float:
        """Return a duration. Raises ConfigError if the cell is not one."""
        return self.number(place, f"a number of seconds from 0 to {LONGEST_S:g}", 0.0, LONGEST_S)

    def gbps(self, place: int, finite: bool = False) -> float:
        """Return a bandwidth, possibly inf. Raises ConfigError if the cell is not one."""
        most = 1 / SLOWEST_GBPS if finite else math.inf
        return self.number(place, f"a bandwidth in Gbit/s >= {SLOWEST_GBPS:g}", SLOWEST_GBPS, most)

    def number(self, place: int, what: str, least: float, most: float = math.inf) -> float:
        """Return a number from `least` to `most`. Raises ConfigError if the cell is not one."""
        cell = self.cells[place]
        if not cell:
            raise ConfigError(f"{self.said} lacks a value: give {what}.")
        value = as_number(cell)
        if not least <= value <= most:
            raise ConfigError(f"{self.said} has '{cell}' instead of {what}.")
        return value


def as_number(cell: str) -> float:
    """Return a cell's number; nan if it is not a number."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


def read_lines(key: str, name: str) -> list[Line]:
    """Return the nonempty lines of the file in the setting `key`. Raises ConfigError unless it is CSV in UTF-8."""
    path = at_home(name)
    if not path.is_file():
        raise ConfigError(f"{key}={name} is not a file (looked for {path.absolute()}).")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            return [
                Line(f"line {reader.line_num} of {key}={name}", [cell.strip() for cell in row]) for row in reader if row
            ]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{key}={name} cannot be read as CSV: {error}.") from error
