"""metrics.json: what the numbers of metrics.jsonl are, for everything that reports them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from decentral.store.files import read_json, write_json

_FILE = "metrics.json"

AXES = {
    "step": "step",
    "epoch": "epoch",
    "wall_s": "seconds",
    "bytes_sent": "bytes sent by all workers",
    "simulated_s": "simulated seconds",
}
"""What can be the x axis of a curve: key of a row of metrics.jsonl, which is a column of curves.csv -> in words.

`wall_s` is training time without evaluation; `simulated_s` time in a virtual cluster; `bytes_sent` counts what all
workers together have sent. An axis that is added here can be recorded, by those runs that have it, with every
evaluation, collected, drawn and judged by.
"""


@dataclass(frozen=True)
class Metric:
    """A number that evaluation gives for a model: the accuracy on test data, say.

    split             what it is taken on: test, train, objective, model
    name              accuracy, loss, suboptimality
    larger_is_better  None: neither; it describes, and judges nothing
    unit              'nats', 's'; '%' for a fraction of 1 that people read in percent
    chance            what guessing gives, as a fraction where `unit` is '%'; None where there is no such thing
    """

    split: str
    name: str
    larger_is_better: bool | None = False
    unit: str = ""
    chance: float | None = None

    @property
    def percent(self) -> bool:
        """Whether it is a fraction that is read in percent."""
        return self.unit == "%"

    @property
    def words(self) -> str:
        """For example 'test accuracy'."""
        return f"{self.split} {self.name.replace('_', ' ')}"

    def format(self, value: float, digits: int = 3) -> str:
        """The value as a person reads it: '81.3 %' or '3.42e-07', and with four digits '81.25 %' or '3.415e-07'."""
        return f"{100 * value:.{digits - 2}f} %" if self.percent else f"{value:.{digits}g}"


def write_metadata(run_dir: Path, metrics: Iterable[Metric]) -> None:
    """Replace `run_dir/metrics.json` atomically; the first metric is what the run is judged by."""
    write_json(run_dir / _FILE, {"metrics": [asdict(metric) for metric in metrics]})


def read_metadata(run_dir: Path, measured: Iterable[tuple[str, str]] = ()) -> dict[tuple[str, str], Metric]:
    """(split, name) -> metric: those of the run's file, in its order, then all others of `measured`.

    Runs that are older than the file have none, see `_without_file`. Never raises.
    """
    keys = {field.name for field in fields(Metric)}
    listed = (read_json(run_dir / _FILE) or {}).get("metrics")
    known = [
        Metric(**{key: value for key, value in one.items() if key in keys})
        for one in (listed if isinstance(listed, list) else [])
        if isinstance(one, dict) and isinstance(one.get("split"), str) and isinstance(one.get("name"), str)
    ]
    found = {(metric.split, metric.name): metric for metric in known}
    older = sorted((_without_file(*key) for key in measured if key not in found), key=_importance)
    return found | {(metric.split, metric.name): metric for metric in older}


_JUDGING, _LOSSES, _DESCRIBING = ("accuracy", "suboptimality"), ("loss",), ("consensus_distance",)
_SPLITS = ("test", "objective", "validation", "train", "model")


def _without_file(split: str, name: str) -> Metric:
    """What was taken for granted before runs had a metrics.json: accuracies are fractions, and larger is better; of
    anything else the direction is not known."""
    accuracy = name.endswith("accuracy")
    return Metric(split, name, larger_is_better=True if accuracy else None, unit="%" if accuracy else "")


def _importance(metric: Metric) -> tuple[int, str, int, str]:
    """The order in which such metrics are reported: what a run is judged by, others, losses, what only describes."""
    groups = (_JUDGING, (), _LOSSES, _DESCRIBING)
    group = next((number for number, names in enumerate(groups) if metric.name in names), 1)
    split = _SPLITS.index(metric.split) if metric.split in _SPLITS else len(_SPLITS)
    return group, metric.name, split, metric.split
