"""A school of fish and a predator: how well the fish know where it is, and where they are."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from decentral.config.composition import compose
from decentral.errors import ConfigError, suggest
from decentral.jobs.computation import check_losses, without_seed_and_rate
from decentral.jobs.fish_school.job import SHARING, FishSchool
from decentral.jobs.fish_school.school import BEHAVIOURS, School
from decentral.study.job_cell import JobCell
from decentral.study.study import Cell, Curve, Study, Value, in_steps

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
class FishSchoolCell(JobCell[FishSchool]):
    """One school for all seeds."""

    def read(self) -> Iterator[Value]:
        """The error (root mean square over the fish, mean over the second half of the rounds), and the end: the nearest
        fish, and the widest gap where the school means to close it."""
        for line in self.job.found():
            numbers = line["numbers"]
            yield Value(self.labels, statistics.fmean(numbers["error"][self.job.rounds // 2 :]), ERROR, line["seed"])
            yield Value(self.labels, numbers["nearest"][-1], NEAREST, line["seed"])
            if self.job.behaviour == "encircle":
                yield Value(self.labels, numbers["gap"][-1], GAP, line["seed"])

    def read_curves(self) -> Iterator[Curve]:
        """The numbers of each round, and of the first seed the fish in the rounds that are drawn."""
        lines = self.job.found()
        for key, metric in CURVES.items():
            for line in lines:
                yield Curve(self.labels, metric, "", line["seed"], in_steps(enumerate(line["numbers"][key])))
        yield from self._pictures(lines[0])

    def _pictures(self, line: dict[str, Any]) -> list[Curve]:
        """Places, headings and estimates, each a curve over the rounds that are drawn."""
        series: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for picture in line["pictures"]:
            k = picture["round"]
            rows = {str(i): [*x, h, *w] for i, (x, h, w) in enumerate(_fish(picture))}
            rows[PREDATOR] = picture["predator"]
            for worker, numbers in rows.items():
                metrics = (PLACE_X, PLACE_Y, HEADING, ESTIMATE_X, ESTIMATE_Y)
                for metric, number in zip(metrics, numbers, strict=False):  # a predator has a place only
                    series.setdefault((metric, worker), []).append((k, number))
        seed = line["seed"]
        return [Curve(self.labels, metric, who, seed, in_steps(own)) for (metric, who), own in series.items()]


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

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Behaviour by behaviour, row by row."""
        config = compose([*self.base, *overrides], config_dir)
        check_losses(config)
        config = without_seed_and_rate(config)
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
