"""The time of a step over the bandwidth of links and the slowdown of stragglers: time alone, nothing is trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from decentral.cluster.cluster import Machines
from decentral.config.identity import component_identity
from decentral.config.prepared import prepare
from decentral.errors import ConfigError
from decentral.measurements.measurement import Measurement, check_losses
from decentral.measurements.timeline import STEP, cluster_of
from decentral.measurements.values import Labels, Meaning, Value
from decentral.settings import setting

SLOWDOWN, BANDWIDTH = "slowdown", "gbps"


@dataclass
class TimelineMap(Measurement):
    """The time of a step over how many times as long slow workers take, and over the bandwidth of the links.

    A line for each seed: {"seed", "step_s": for each slowdown, the seconds for each bandwidth}.

    slowdowns  values of the label `slowdown`, from bottom to top
    gbps       bandwidth of all links in Gbit/s, the label `gbps`, from left to right
    seeds      seeds of the delays
    steps      steps of every run; the time per step averages over all of them
    """

    name: str = "timeline_map"
    slowdowns: list[float] = setting([], above=1)
    gbps: list[float] = setting([], above=0)
    seeds: list[int] = field(default_factory=lambda: [1])
    steps: int = setting(100, at_least=1)

    folder: ClassVar[str] = "times_over_links"
    decides: ClassVar[frozenset[str]] = frozenset({"lr", "cluster.stragglers.slowdown", "cluster.links.bandwidth_gbps"})
    meanings: ClassVar[dict[str, Meaning]] = {STEP: Meaning(False, "s")}

    def __post_init__(self) -> None:
        if not self.slowdowns or not self.gbps:
            raise ConfigError(
                f"slowdowns={self.slowdowns} and gbps={self.gbps} do not span a map: give numbers for both."
            )

    def check(self) -> None:
        """There have to be machines."""
        check_losses(self.config)
        if not isinstance(cluster_of(self.config, sized=True), Machines):
            raise ConfigError("this cluster has no bandwidth and no slow workers to vary: use cluster=machines.")

    def parameters(self) -> dict[str, Any]:
        """Seeds, steps and places, and the topology where the run's identity leaves it out."""
        places = {"slowdowns": self.slowdowns, "gbps": self.gbps}
        over = component_identity(self.config.topology)
        return {"seeds": self.seeds, "steps": self.steps, **places, "over": over}

    def line(self, seed: int) -> dict[str, Any]:
        """Return the line of a part."""
        from decentral.training.timing import timed

        cluster = self.config.cluster
        assert isinstance(cluster, Machines) and cluster.num_parameters is not None
        rows = []
        for slowdown in self.slowdowns:
            rows.append(row := list[float]())
            for gbps in self.gbps:
                stragglers = replace(cluster.stragglers, slowdown=slowdown)
                changed = replace(cluster, stragglers=stragglers, links=replace(cluster.links, bandwidth_gbps=gbps))
                config = replace(self.config, seed=seed, cluster=changed)
                row.append(timed(prepare(config), self.steps, cluster.num_parameters).step_s)
        return {"step_s": rows}

    def cells(self) -> list[Labels]:
        """One, whose values say where."""
        return [self.labels | {SLOWDOWN: "", BANDWIDTH: ""}]

    def values(self, labels: Labels) -> Iterator[Value]:
        """The time of a step at each place."""
        for line in self.found():
            for slowdown, times in zip(self.slowdowns, line["step_s"], strict=True):
                for gbps, seconds in zip(self.gbps, times, strict=True):
                    yield Value(labels | {SLOWDOWN: slowdown, BANDWIDTH: gbps}, seconds, STEP, line["seed"])
