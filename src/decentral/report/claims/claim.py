"""The contract of a claim, and the cells that it is about."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from decentral.errors import ConfigError, suggest
from decentral.report.entries import Entry, Search, plain

MET, NOT_MET, NOT_RUN = "met", "not met", "not run"
WITHIN_NOISE = "within the noise"
"""How the reason of a verdict begins whose difference may be chance: it is smaller than `weighing.noise`."""


class Finding(NamedTuple):
    """What came of a claim: one line of verdicts.csv."""

    verdict: str
    ours: float | None = None
    spread: float | None = None
    tolerance: str = ""
    why: str = ""


class NotRun(Exception):
    """A cell has no values yet, or not all that it will have; says which one and why."""


class Cells:
    """The entries of a study, to be found by some of their labels."""

    def __init__(self, entries: list[Entry], study: str, searches: Sequence[Search] = ()) -> None:
        self.entries, self.study, self.searches = entries, study, searches
        self.labels = list(dict.fromkeys(name for entry in entries for name in entry.labels))

    def find(self, says: str, *wanted: Mapping[str, Any]) -> list[Entry]:
        """For each of `wanted` the one entry with these labels, of the first metric unless `metric` is among them.

        A metric may be a pattern, such as `simulated_s to *`, for numbers that are called differently from scale to
        scale. Raises ConfigError if a label does not exist or several entries have them, NotRun while one of them is
        not complete.
        """
        found = [self._find(one, says) for one in wanted]
        for entry, labels in zip(found, wanted, strict=True):
            words = ", ".join(f"{name}={plain(value)}" for name, value in labels.items())
            if entry is None and (tried := self._tried(labels)):
                why = "that counts has ended, only runs of the search for its learning rate"
                raise NotRun(f"no run of {words} {why}: {tried}")
            if entry is None:
                raise NotRun(f"no run of {words} has ended")
            if entry.unfinished:
                raise NotRun(f"{entry.unfinished} of {words}")
        return [entry for entry in found if entry is not None]

    def _find(self, wanted: Mapping[str, Any], says: str) -> Entry | None:
        """The entry with these labels; None if no run of it has ended."""
        for name in wanted:
            if self.entries and name not in (*self.labels, "metric"):
                known = suggest(name, (*self.labels, "metric"))
                raise ConfigError(f"study {self.study}: the claim '{says}' names a label '{name}'.{known}")
        labels = {name: plain(value) for name, value in wanted.items()}
        metric = str(labels.pop("metric", self.entries[0].metric if self.entries else ""))
        exact = [e for e in self.entries if e.metric == metric]
        alike = exact or [e for e in self.entries if fnmatchcase(e.metric, metric)]
        found = [e for e in alike if labels.items() <= e.labels.items()]
        if len(found) > 1:
            both = ({**entry.labels, "metric": entry.metric} for entry in found[:2])
            first, second = (", ".join(f"{name}={value}" for name, value in one.items()) for one in both)
            raise ConfigError(
                f"study {self.study}: the claim '{says}' means both {first} and {second}: give it more labels."
            )
        return found[0] if found and (found[0].values or found[0].lost) else None

    def _tried(self, wanted: Mapping[str, Any]) -> str:
        """The learning rates that were tried so far for the cell with these labels, while it has nothing else."""
        labels = {name: plain(value) for name, value in wanted.items() if name != "metric"}
        rates = {rate for one in self.searches if labels.items() <= one.labels.items() for rate in one.rates}
        return ", ".join(f"{rate:.6g}" for rate in sorted(rates))


@dataclass
class Claim(ABC):
    """A dataclass whose fields are its keys; the subclass has a `name`, which is its `kind`."""

    says: str = ""
    larger_is_better: bool | None = field(default=None, kw_only=True)
    """Null: as in the report."""

    @property
    def metric(self) -> str:
        """The metric that its cells name; '' if they mean the study's first."""
        named = [value["metric"] for value in vars(self).values() if isinstance(value, dict) and "metric" in value]
        return str(named[0]) if named else ""

    @abstractmethod
    def check(self, cells: Cells, larger_is_better: bool) -> Finding:
        """Whether our numbers agree. Raises NotRun if some of them are still to come."""
