"""metrics.jsonl: long rows, appended one write per evaluation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from decentral.store.lines import LineFile, damaged, read_lines
from decentral.store.metadata import AXES

_ALWAYS = ("step", "epoch", "worker", "split", "metric", "value")
COLUMNS = tuple(dict.fromkeys((*_ALWAYS, *AXES)))
"""Keys of a row, in their order. A row need not have a place on each of the axes, but on those of step and epoch."""


class MetricsFile(LineFile):
    """The writing end, for rows with keys of COLUMNS."""

    def append_rows(self, rows: Iterable[dict[str, Any]]) -> None:
        """Write the rows of an evaluation at once, a line each; see `append`."""
        lines = []
        for row in rows:
            assert set(_ALWAYS) <= row.keys() <= set(COLUMNS), f"a row has the keys {COLUMNS}, not {tuple(row)}"
            lines.append({key: row[key] for key in COLUMNS if key in row})
        self.append(*lines)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a run directory (or of a metrics.jsonl), each (step, worker, split, metric) once.

    An unterminated last line is dropped: its writer died, or is about to finish it. A resumed run writes some rows
    again; the last one counts. No file means no rows. Raises ConfigError if a finished line is damaged.
    """
    file = path / "metrics.jsonl" if path.is_dir() else path
    rows: dict[tuple, dict[str, Any]] = {}
    for number, row in enumerate(read_lines(file), 1):
        if not {"step", "worker", "split", "metric", "value"} <= row.keys() or not isinstance(
            row["value"], int | float
        ):
            raise damaged(file, number)
        rows[row["step"], row["worker"], row["split"], row["metric"]] = row
    return list(rows.values())
