"""Studies of a measurement: rows times columns, each combination measured separately."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass
from functools import cache
from typing import Any, ClassVar, get_type_hints

from decentral.errors import ConfigError, suggest
from decentral.measurements.measurement import Measurement, without_seed_and_rate
from decentral.measurements.values import Labels, Meaning, Row, Value
from decentral.published import key as published_key
from decentral.scheduling.job import Job
from decentral.study.study import Cell, Study, overrides_of, points


@dataclass
class MeasuredStudy(Study):
    """A measurement of each of `rows` at each combination of `columns`; further keys are the measurement's settings.

    rows          labels that distinguish the rows (method, topology), `base`: overrides, `published`:
                  'algorithm|topology' of its numbers in the published table, `only`: columns that it is measured at, if
                  not all, and any setting
    columns       label -> values, for example {num_workers: [4, 8]}; every combination is a column
    keys          label -> key of decentral-run, where the label is not the key itself: {waits for: cluster.waits_for}
    setting       format of a value in the published table: with {num_workers} and other labels
    published_at  label -> values of the columns with numbers in the paper; {}: all
    """

    rows: list[Any] = field(default_factory=list)
    columns: dict[str, list[Any]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    setting: str = ""
    published_at: dict[str, list[Any]] = field(default_factory=dict)

    measurement: ClassVar[type[Measurement]]

    def __post_init__(self) -> None:
        unknown = next((label for label in self.published_at if label not in self.columns), None)
        if unknown is not None:
            raise ConfigError(f"published_at: {unknown} is not a column.{suggest(unknown, self.columns)}")
        for row in self.rows or [None]:
            self.measurement(**self._settings(row))  # which checks them

    def decided_keys(self) -> set[str]:
        """Add those of the measurement, and the keys of the columns."""
        columns = {self.keys.get(label, label) for label in self.columns}
        return super().decided_keys() | self.measurement.decides | columns

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Row by row, column by column."""
        from decentral.config.composition import compose_all

        rows = self.rows or ([] if self.measurement.row_labels else [row_class(self.measurement)()])
        places = [(row, point) for row in rows for point in points(self.columns, row.only)]
        commands, names = [], []
        for row, point in places:
            variants = {"config": row.base, **self.measurement.variants(row.base, self._settings(row))}
            names.append(list(variants))
            for base in variants.values():
                commands.append([*self.base, *base, *overrides_of(point, self.keys), *overrides])
        composed = iter(compose_all(commands, config_dir))
        found = []
        for (row, point), fields in zip(places, names, strict=True):
            configs = {name: next(composed) for name in fields}
            if "lr" in self.measurement.decides:
                configs = {name: without_seed_and_rate(config) for name, config in configs.items()}
            labels = {label: getattr(row, label) for label in self.measurement.row_labels} | point
            one = self.measurement(**self._settings(row), **configs, labels=labels)
            one.check()
            found.append(one)
        columns: dict[str, list[Measurement]] = {}
        for one, (_, point) in zip(found, places, strict=True):
            columns.setdefault(repr(point), []).append(one)
        cells: list[Cell] = []
        for one, (row, point) in zip(found, places, strict=True):
            job = one.beside(columns[repr(point)])
            given = all(point[label] in values for label, values in self.published_at.items())
            published = (row.published if given else "", row.setting or self.setting)
            cells += [MeasuredCell(labels, job, *published) for labels in one.cells()]
        return cells

    def _settings(self, row: Any) -> dict[str, Any]:
        """The study's, and those of the row in their place; dictionaries are merged."""
        found = {}
        for name in settings_of(self.measurement):
            value, own = getattr(self, name), getattr(row, name, None)
            if isinstance(value, dict) and isinstance(own, dict):
                value = value | own
            elif own not in (None, ""):
                value = own
            found[name] = value
        return found


@dataclass
class MeasuredCell(Cell):
    """A part of what a measurement has found, or all of it."""

    labels: Labels
    job: Measurement
    line: str
    """'algorithm|topology' of its published numbers; '' if there are none."""
    setting: str

    def jobs(self) -> list[Job]:
        """Return the jobs of the measurement."""
        return self.job.jobs()

    def _done(self) -> bool:
        return all(job.finished() is not None for job in self.jobs())

    def values(self) -> list[Value]:
        """Return the values once all jobs are done; of the first job, if the measurement does not say of which."""
        if not self._done():
            return []
        run = next((job.id for job in self.jobs()), "")
        found = []
        for value in self.job.values(self.labels):
            compared = value.metric == (self.job.compared or value.metric)
            key = published_key(self.line, self.setting, **value.labels) if compared else ""
            meaning = self.job.meanings.get(value.metric, Meaning())
            found.append(value._replace(run=value.run or run, published=key, meaning=meaning))
        return found

    def curves(self) -> list[Row]:
        """Return the curves once all jobs are done."""
        return list(self.job.curves(self.labels)) if self._done() else []

    def wanted(self) -> int:
        """A value of each seed counts."""
        return len(getattr(self.job, "seeds", ()))


def settings_of(measurement: type[Measurement]) -> dict[str, dataclasses.Field[Any]]:
    """Return name -> field of the settings: a measurement's fields except configuration, labels and name."""
    inner = {"name", *(one.name for one in dataclasses.fields(Measurement))}
    known = dataclasses.fields(measurement)
    return {one.name: one for one in known if one.name not in inner and not one.metadata.get("inner")}


@cache
def study_class(measurement: type[Measurement]) -> type[MeasuredStudy]:
    """The dataclass whose fields are the keys of a study with this measurement."""
    hints = get_type_hints(measurement)
    fields: list[Any] = [("name", str, measurement.__dataclass_fields__["name"].default)]
    fields.append(("rows", list[row_class(measurement)], field(default_factory=list)))  # type: ignore[misc]
    for name, one in settings_of(measurement).items():
        factory = one.default_factory
        default = one.default if factory is dataclasses.MISSING else field(default_factory=factory)
        fields.append((name, hints[name], default))
    own = {"measurement": measurement, "timed": measurement.timed}
    return make_dataclass(f"{measurement.__name__}Study", fields, bases=(MeasuredStudy,), namespace=own)


@cache
def row_class(measurement: type[Measurement]) -> type:
    """The dataclass whose fields are the keys of a row; a setting that is None is the study's."""
    hints = get_type_hints(measurement)
    fields: list[Any] = [(label, str, "") for label in measurement.row_labels]
    fields += [("base", list[str], field(default_factory=list)), ("published", str, ""), ("setting", str, "")]
    fields.append(("only", dict[str, list[Any]], field(default_factory=dict)))
    own = [name for name in settings_of(measurement) if name not in measurement.row_labels]
    return make_dataclass("Row", [*fields, *((name, hints[name] | None, None) for name in own)])
