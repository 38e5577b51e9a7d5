"""A school of fish and a predator: how well the fish know where it is, and where they are."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decentral.composition import compose
from decentral.ensembles.job import check_losses, same
from decentral.errors import ConfigError, suggest
from decentral.fish_school.job import SHARING, FishSchool
from decentral.fish_school.school import BEHAVIOURS, School
from decentral.launch.job import Job
from decentral.study.study import Cell, Curve, Labels, Study, Value

ERROR = "error of the estimates (body lengths)"
NEAREST, GAP = "nearest fish at the end (body lengths)", "widest gap at the end (degrees)"
CURVES = {"error": ERROR, "nearest": "nearest fish (body lengths)", "groups": "groups of fish"}
"""Numbers of each round -> metric of curves.csv."""
PLACE_X, PLACE_Y, HEADING, ESTIMATE_X, ESTIMATE_Y = "place x", "place y", "heading", "estimate x", "estimate y"
PREDATOR = "predator"


@dataclass
class Sharing:
    """A row: with whom the fish average their estimates.

    method    as tables and figures show it
    sharing   neighbours, nobody or everybody
    pictures  whether the places of its fish are kept, of the first seed
    """

    method: str = ""
    sharing: str = "neighbours"
    pictures: bool = False


@dataclass
class Behaviour:
    """What the fish do about the predator (escape or encircle), and in which school.

    pictures  the rounds that are drawn
    """

    behaviour: str = "escape"
    school: School = field(default_factory=School)
    pictures: list[int] = field(default_factory=list)


@dataclass
class FishSchoolCell(Cell):
    """One school for all seeds."""

    labels: Labels
    job: FishSchool

    def jobs(self) -> list[Job]:
        """The one."""
        return [self.job]

    def values(self) -> list[Value]:
        """The error (root mean square over the fish, mean over the second half of the rounds), and the end: the nearest
        fish, and the widest gap where the school means to close it."""
        if self.job.finished() is None:
            return []
        found = []
        for line in self.job.found():
            numbers = line["numbers"]
            error = statistics.fmean(numbers["error"][self.job.rounds // 2 :])
            known = {ERROR: error, NEAREST: numbers["nearest"][-1]}
            if self.job.behaviour == "encircle":
                known[GAP] = numbers["gap"][-1]
            for metric, value in known.items():
                found.append(Value(self.labels, value, metric, line["seed"], run=self.job.id))
        return [value._replace(wall_s=self.job.wall_s() / len(found)) for value in found]

    def curves(self) -> list[Curve]:
        """The numbers of each round, and of the first seed what the pictures show."""
        if self.job.finished() is None:
            return []
        lines = self.job.found()
        found = [
            Curve(self.labels, metric, "", line["seed"], [(k, k, y) for k, y in enumerate(line["numbers"][key])])
            for key, metric in CURVES.items()
            for line in lines
        ]
        return found + self._pictures(lines[0])

    def wanted(self) -> int:
        """The seeds."""
        return len(self.job.seeds)

    def _pictures(self, line: dict[str, Any]) -> list[Curve]:
        """Places, headings and estimates, each a curve over the rounds that are drawn."""
        series: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
        for picture in line["pictures"]:
            k = picture["round"]
            rows = {str(i): [*x, h, *w] for i, (x, h, w) in enumerate(_fish(picture))}
            rows[PREDATOR] = picture["predator"]
            for worker, numbers in rows.items():
                metrics = (PLACE_X, PLACE_Y, HEADING, ESTIMATE_X, ESTIMATE_Y)
                for metric, number in zip(metrics, numbers, strict=False):  # a predator has a place only
                    series.setdefault((metric, worker), []).append((k, k, number))
        return [Curve(self.labels, metric, who, line["seed"], points) for (metric, who), points in series.items()]


@dataclass
class FishSchoolStudy(Study):
    """`rows` (with whom estimates are shared) for each of `behaviours`, over `seeds`; `rounds` of each.

    The number of fish is num_workers in `base`; task and topology make no difference: the graph follows the fish.
    """

    name: str = "fish_school"
    rows: list[Sharing] = field(default_factory=list)
    behaviours: list[Behaviour] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    rounds: int = 100

    def __post_init__(self) -> None:
        for row in self.rows:
            if row.sharing not in SHARING:
                raise ConfigError(f"rows: sharing={row.sharing} does not exist.{suggest(row.sharing, SHARING)}")
        for one in self.behaviours:
            if one.behaviour not in BEHAVIOURS:
                raise ConfigError(
                    f"behaviours: behaviour={one.behaviour} does not exist.{suggest(one.behaviour, BEHAVIOURS)}"
                )

    def cells(self, overrides: Sequence[str], results_dir: Path, config_dir: str | None = None) -> list[Cell]:
        """Behaviour by behaviour, row by row."""
        config = compose([*self.base, *overrides], config_dir)
        check_losses(config)
        config = same(config, results_dir)
        cells: list[Cell] = []
        for one in self.behaviours:
            for row in self.rows:
                pictures = tuple(k for k in one.pictures if k <= self.rounds) if row.pictures else ()
                own = tuple(self.seeds), one.school, one.behaviour, row.sharing, self.rounds, pictures
                job = FishSchool(config, f"{one.behaviour}, {row.method}", *own)
                cells.append(FishSchoolCell({"method": row.method, "behaviour": one.behaviour}, job))
        return cells


def _fish(picture: dict[str, Any]) -> zip[tuple[list[float], float, list[float]]]:
    """(place, heading, estimate) of each fish."""
    return zip(picture["x"], picture["heading"], picture["w"], strict=True)
