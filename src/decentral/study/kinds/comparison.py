"""Methods side by side over a few settings, each with its own tuned learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from decentral.config.composition import compose_all
from decentral.config.parsing import build
from decentral.errors import ConfigError, suggest
from decentral.published import key as published_key
from decentral.registry import components
from decentral.study.kinds.comparison_cell import ComposedRun, TunedCell
from decentral.study.measure import Measure
from decentral.study.rows import Row, overrides_of, points
from decentral.study.study import Cell, Study


@dataclass
class ComparisonRow(Row):
    """A method of the comparison.

    lr                  where its search for a learning rate begins (or its rate, where nothing is tuned)
    lrs                 the same for single values of the first column, if they differ
    only                columns that it is compared at, if not all: {alpha: [0.01]}; {keep: ['']}: at none of them
    worker              whose model counts in this row, if not `measure.worker`: another look at the same runs
    """

    lr: float | None = None
    lrs: list[float] = field(default_factory=list)
    only: dict[str, list[Any]] = field(default_factory=dict)
    worker: str = ""


_CURVES = ("worst", "mean", "averaged", "each", "counted")


@dataclass
class Comparison(Study):
    """A row for every method, a column for every setting; the learning rate of each cell is tuned; several seeds.

    rows        the methods
    columns     label -> values, for example {alpha: [1, 0.1, 0.01]}; every combination is a column
    keys        label -> key of decentral-run, where the label is not the key itself: {drop: network.drop_probability}
    tune        how a cell's learning rate is found: {rule: <name in tuning/>, and its settings}
    tune_base   overrides of the runs that are made for tuning only, such as [epochs=50]
    tune_seeds  seeds of those runs
    retreat     whether a rate with which a seed diverges does not count, so that the search goes on
    seeds       seeds of the runs that count
    measure     what a run is judged by
    also        what else the runs that count are looked at for, each like `measure`: a metric of its own
    setting     how the published table writes a column: 'alpha={alpha:g}'
    curves      whose metric over time is kept for figures, and other metrics of `also`: worst, mean, averaged, each, a
                worker's number, or counted: whoever counts in that row
    """

    name: str = "comparison"
    cell: ClassVar[type[TunedCell]] = TunedCell
    rows: list[ComparisonRow] = field(default_factory=list)
    columns: dict[str, list[Any]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    tune: dict[str, Any] = field(default_factory=lambda: {"rule": "fixed"})
    tune_base: list[str] = field(default_factory=list)
    tune_seeds: list[int] = field(default_factory=lambda: [1])
    retreat: bool = True
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    measure: Measure = field(default_factory=Measure)
    also: list[Measure] = field(default_factory=list)
    setting: str = ""
    curves: list[str] = field(default_factory=list)

    def decided_keys(self) -> set[str]:
        """Also the keys of the columns, and the learning rate where it is tuned."""
        known = {self.keys.get(label, label) for label in self.columns}
        tuned = set() if self.tune.get("rule", "fixed") == "fixed" else {"lr"}
        return super().decided_keys() | known | tuned

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Row by row, column by column."""
        rule = self._rule()
        wrong = next((one for one in self.curves if one not in _CURVES and not str(one).isdigit()), None)
        if wrong is not None:
            raise ConfigError(f"curves={self.curves} has {wrong}.{suggest(str(wrong), _CURVES)} Or a worker's number.")
        settings = [(row, point) for row in self.rows for point in points(self.columns, row.only)]
        commands = []
        for row, point in settings:
            rate = self._rate(row, point)
            lr = [f"lr={rate}"] if rate is not None and "lr" not in point else []
            commands.append(["save=none", *self.base, *row.base, *lr, *overrides_of(point, self.keys), *overrides])
        final = _composed(commands, config_dir)
        tuning = final
        if self.tune_base:
            tuning = _composed([[*command, *self.tune_base] for command in commands], config_dir)
        return [
            self.cell(
                labels={"method": row.method, "topology": row.topology, **point},
                final=counting,
                tuning=searching,
                rule=rule,
                study=self,
                measure=replace(self.measure, worker=row.worker or self.measure.worker),
                published=self._published(row, point),
            )
            for (row, point), counting, searching in zip(settings, final, tuning, strict=True)
        ]

    def _rule(self) -> Any:
        values = dict(self.tune)
        rules, name = components("study.tuning"), values.pop("rule", "fixed")
        if name not in rules:
            raise ConfigError(f"tune.rule={name} does not exist.{suggest(str(name), rules)}")
        return build(rules[name], values, f"tune.rule={name}")

    def _rate(self, row: ComparisonRow, point: dict[str, Any]) -> float | None:
        if not row.lrs:
            return row.lr
        first = next(iter(self.columns), "")
        if len(row.lrs) != len(self.columns.get(first, [])):
            raise ConfigError(f"rows: {row.method} needs as many lrs as {first or 'the first column'} has values.")
        return row.lrs[self.columns[first].index(point[first])]

    def _published(self, row: ComparisonRow, point: dict[str, Any]) -> str:
        return published_key(row.published, self.setting, **point)


def _composed(commands: list[list[str]], config_dir: str | None) -> list[ComposedRun]:
    configs = compose_all(commands, config_dir)
    return [ComposedRun(*pair, config_dir) for pair in zip(commands, configs, strict=True)]
