"""CSV files that a cluster is described by."""

from __future__ import annotations

import csv
from pathlib import Path

from decentral.errors import ConfigError


def read_rows(key: str, name: str, path: Path) -> list[tuple[int, list[str]]]:
    """The number and the cells of each line that is not empty of the file that the setting `key` names.

    Raises ConfigError if it is no CSV in UTF-8.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            return [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{key}={name} cannot be read as CSV: {error}.") from error
