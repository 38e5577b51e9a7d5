"""The study of a measurement: rows times columns, each combination measured by itself."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass
from functools import cache
from typing import Any, ClassVar, get_type_hints

from decentral.config.composition import compose_all
from decentral.errors import ConfigError, suggest
from decentral.measurements.measurement import Measurement, without_seed_and_rate
from decentral.measurements.values import Curve, Labels, Meaning, Value
from decentral.published import key as published_key
from decentral.scheduling.job import Job
from decentral.store import RunStore, Status
from decentral.study.study import Cell, Study, overrides_of, points


@dataclass
class MeasuredStudy(Study):
    """A measurement of each of `rows` at each combination of `columns`; further keys are the measurement's settings.

    rows          what tells them apart (method, topology), `base`: overrides, `published`: 'algorithm|topology' of its
                  numbers in the published table, `only`: columns that it is measured at, if not all, and any setting
    columns       label -> values, for example {num_workers: [4, 8]}; every combination is a column
    keys          label -> key of decentral-run, where the label is not the key itself: {waits for: cluster.waits_for}
    setting       how the published table writes a value: with {num_workers} and other labels
    published_at  label -> values of the columns that the paper gives numbers for; {}: all
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
            raise ConfigError(f"published_at: {unknown} is no column.{suggest(unknown, self.columns)}")
        for row in self.rows or [None]:
            self._measurement(row, {})  # which checks the settings

    @property
    def timed(self) -> frozenset[str]:  # type: ignore[override]
        """Those of the measurement."""
        return self.measurement.timed

    def decided_keys(self) -> set[str]:
        """Also those of the measurement, and the keys of the columns."""
        columns = {self.keys.get(label, label) for label in self.columns}
        return super().decided_keys() | self.measurement.decides | columns

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Row by row, column by column."""
        places = [(row, point) for row in self._rows() for point in points(self.columns, row.only)]
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
            one = self._measurement(row, configs | {"labels": labels})
            one.check()
            found.append(one)
        columns: dict[str, list[Measurement]] = {}
        for one, (_, point) in zip(found, places, strict=True):
            columns.setdefault(repr(point), []).append(one)
        cells = []
        for one, (row, point) in zip(found, places, strict=True):
            job = one.beside(columns[repr(point)])
            given = all(point[label] in values for label, values in self.published_at.items())
            published = (row.published if given else "", row.setting or self.setting)
            cells += [MeasuredCell(labels, job, *published) for labels in one.cells()]
        shared = Counter(cell.job.id for cell in cells)
        for cell in cells:
            cell.sharing = shared[cell.job.id]
        return list(cells)

    def _rows(self) -> list[Any]:
        return self.rows or ([] if self.measurement.row_labels else [row_class(self.measurement)()])

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

    def _measurement(self, row: Any, known: dict[str, Any]) -> Measurement:
        return self.measurement(**self._settings(row), **known)


@dataclass
class MeasuredCell(Cell):
    """A part of what a measurement has found, or all of it."""

    labels: Labels
    job: Measurement
    line: str
    """'algorithm|topology' of its published numbers; '' if there are none."""
    setting: str
    sharing: int = 1
    """How many cells share the job."""

    def jobs(self) -> list[Job]:
        """Those of the measurement."""
        return self.job.jobs()

    def _done(self) -> bool:
        return all(job.finished() is Status.done for job in self.jobs())

    def values(self) -> list[Value]:
        """As soon as all jobs are done; each has an equal share of the time."""
        if not self._done():
            return []
        found = list(self.job.values(self.labels))
        run, wall_s = "", 0.0
        for job in self.jobs()[:1]:
            spent_s = float((RunStore.peek(job.directory) or {}).get("wall_s", 0.0))
            run, wall_s = job.id, spent_s / self.sharing / max(1, len(found))
        return [value._replace(run=run, wall_s=wall_s, published=self._published(value)) for value in found]

    def _published(self, value: Value) -> str:
        if value.metric != (self.job.compared or value.metric):
            return ""
        return published_key(self.line, self.setting, **value.labels)

    def curves(self) -> list[Curve]:
        """As soon as all jobs are done."""
        return list(self.job.curves(self.labels)) if self._done() else []

    def meanings(self) -> dict[str, Meaning]:
        """Those of the measurement."""
        return self.job.meanings

    def wanted(self) -> int:
        """A value of each seed counts."""
        return len(getattr(self.job, "seeds", ()))


def settings_of(measurement: type[Measurement]) -> dict[str, dataclasses.Field[Any]]:
    """Name -> field of the settings: what a measurement has beside its configuration, its labels and its name."""
    inner = {"name", *(one.name for one in dataclasses.fields(Measurement))}
    fields = {one.name: one for one in dataclasses.fields(measurement) if not one.metadata.get("inner")}
    return {name: one for name, one in fields.items() if name not in inner}


@cache
def study_class(measurement: type[Measurement]) -> type[MeasuredStudy]:
    """The dataclass whose fields are the keys of a study with this measurement."""
    hints = get_type_hints(measurement)
    settings = [(name, hints[name], _default(one)) for name, one in settings_of(measurement).items()]
    rows: Any = ("rows", list[row_class(measurement)], field(default_factory=list))  # type: ignore[misc]
    name = ("name", str, measurement.__dataclass_fields__["name"].default)
    made = make_dataclass(
        f"{measurement.__name__}Study",
        [name, rows, *settings],
        bases=(MeasuredStudy,),
        namespace={"measurement": measurement},
    )
    return made


@cache
def row_class(measurement: type[Measurement]) -> type:
    """The dataclass whose fields are the keys of a row; a setting that is None is the study's."""
    hints = get_type_hints(measurement)
    labels = [(label, str, "") for label in measurement.row_labels]
    settings = [
        (name, hints[name] | None, None) for name in settings_of(measurement) if name not in measurement.row_labels
    ]
    own = [
        ("base", list[str], field(default_factory=list)),
        ("published", str, ""),
        ("setting", str, ""),
        ("only", dict[str, list[Any]], field(default_factory=dict)),
    ]
    return make_dataclass("Row", [*labels, *own, *settings])


def _default(one: dataclasses.Field[Any]) -> Any:
    factory = one.default_factory
    return one.default if factory is dataclasses.MISSING else field(default_factory=factory)
