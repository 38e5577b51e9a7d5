"""Time to a target over bandwidth and latency, for synchronous all-reduce methods: trained once, timed for all
links."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.algorithms.allreduce import AllReduce
from decentral.cluster.cluster import Machines
from decentral.cluster.compute import Distribution
from decentral.cluster.links import CollectiveName
from decentral.cluster.network_changes import Mode as Changes
from decentral.cluster.stragglers import Mode
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.measurements.measurement import Computation, without_seed_and_rate
from decentral.measurements.values import Value
from decentral.scheduling.job import Job
from decentral.settings import setting
from decentral.store import Status
from decentral.study.kinds.comparison import Comparison, ComparisonRow, TunedCell
from decentral.study.study import Cell

if TYPE_CHECKING:
    from torch import Tensor

BANDWIDTH, LATENCY = "gbps", "latency_ms"


@dataclass
class LinkRow(ComparisonRow):
    """A method of the comparison.

    overlap     share of a gradient's time that overlaps with an exchange, from 0 to 1
    """

    overlap: float = setting(0.0, at_least=0, at_most=1)


@dataclass
class LinkCell(TunedCell):
    """A tuned method, with the time that its runs would have taken on other links.

    A run of s steps takes s C + s a alpha + V beta: a gradient takes C, each step has a latencies alpha, and V bytes
    (counted as often as the collective sends them) take beta seconds each. The job determines C and a. V follows from
    the run's own time and is the volume actually sent. With overlap o, the exchange of a step costs only its part
    beyond o C.
    """

    factors: LinkFactors | None = None
    overlap: float = 0.0

    def jobs(self) -> list[Job]:
        """Return the jobs of the comparison, and the one that determines C and a."""
        assert self.factors is not None
        return [*super().jobs(), self.factors]

    def values(self) -> list[Value]:
        """Return the steps to the target, which no link changes, then the time for each link, for the runs that
        count."""
        found = super().values()
        if self.factors is None or self.factors.finished() is not Status.done:
            return found
        (known,) = self.factors.found()
        by_id = {job.id: job for job in self._made.values()}
        for value in [value for value in found if value.chosen]:
            own = replace(self.measure, axis="simulated_s").of(by_id[value.run].directory)
            for gbps, latency_ms, seconds in self._times(value.value, own.value, known):
                place = value.labels | {BANDWIDTH: gbps, LATENCY: latency_ms}
                timed = value._replace(labels=place, value=seconds, metric=own.metric, meaning=own.meaning)
                found.append(timed._replace(worst=None, mean=None, averaged=None, at_edge=False, wall_s=0.0))
        return found

    def _times(self, steps: float, seconds: float, known: dict[str, float]) -> Iterator[tuple[float, float, float]]:
        """Yield (Gbit/s, ms, seconds to the target) of a run with these steps and seconds; nan if not reached."""
        cluster, study = self.final.config.cluster, self.study
        assert isinstance(cluster, Machines) and isinstance(study, OverLinks)
        links = cluster.links
        assert links.latency_s is not None and links.bandwidth_gbps is not None
        gradient_s, latencies = known["gradient_s"], known["latencies"]
        volume = (seconds - steps * (gradient_s + latencies * links.latency_s)) * links.bandwidth_gbps / 8e-9
        for latency_ms in study.latency_ms:
            for gbps in study.gbps:
                exchange = steps * latencies * 1e-3 * latency_ms + volume * 8e-9 / gbps
                yield gbps, latency_ms, steps * gradient_s + max(0.0, exchange - self.overlap * steps * gradient_s)


@dataclass
class OverLinks(Comparison):
    """A comparison of all-reduce SGD with compressors, whose runs are timed on many links.

    measure     needs to_reach; its axis is step
    gbps, latency_ms    bandwidths and latencies of all links: the labels of the map
    """

    name: str = "over_links"
    cell: ClassVar[type[TunedCell]] = LinkCell
    rows: list[LinkRow] = field(default_factory=list)  # type: ignore[assignment]
    gbps: list[float] = setting([], above=0)
    latency_ms: list[float] = setting([], above=0)

    def __post_init__(self) -> None:
        if not self.gbps or not self.latency_ms:
            raise ConfigError(
                f"gbps={self.gbps} and latency_ms={self.latency_ms} do not span a map: give numbers for both."
            )
        if self.measure.to_reach is None or self.measure.axis != "step":
            raise ConfigError("measure must count steps to a target here: give to_reach, and axis: step.")
        if self.columns:
            raise ConfigError(f"columns={list(self.columns)} cannot be set here: the columns are gbps and latency_ms.")

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Return the cells, row by row."""
        cells = super().cells(overrides, config_dir)
        for row, cell in zip(self.rows, cells, strict=True):
            assert isinstance(cell, LinkCell)
            config = cell.final.config
            _check(config)
            cell.labels |= {BANDWIDTH: "", LATENCY: ""}
            cell.factors = LinkFactors(without_seed_and_rate(config), {"method": row.method, "latencies": ""})
            cell.overlap = row.overlap
        return cells


def _check(config: Config) -> None:
    """Raise ConfigError if the time on other links does not follow from the time on some."""
    cluster = config.cluster
    if not isinstance(config.algo, AllReduce):
        raise ConfigError("algo must be allreduce here, because waiting depends on the links for other methods.")
    even = isinstance(cluster, Machines) and cluster.compute.distribution is Distribution.constant
    if not (even and isinstance(cluster, Machines) and cluster.stragglers.mode is Mode.none):
        raise ConfigError("all gradients must take the same time here: use cluster=even.")
    if cluster.links.workers_per_machine not in (None, 1) or cluster.network.mode is not Changes.constant:
        raise ConfigError("all links must be alike and constant here: leave out cluster.network and machines.")
    chosen = cluster.links.collective in (CollectiveName.auto, CollectiveName.ring_or_tree)
    if chosen or config.compress.chooses or config.compress.adapts:
        raise ConfigError("messages and collectives must not depend on the links here: name a collective and a share.")


_STEPS = 4


@dataclass
class LinkFactors(Computation):
    """A step of config.algo, with the layout of the configured model, on links that take one second for any message.

    A line: {"gradient_s": seconds per gradient, "latencies": latencies per step}. With them, the time of a run on other
    links follows from its time on some: see `study.kinds.over_links`.
    """

    folder: ClassVar[str] = "link_factors"

    def parameters(self) -> dict[str, Any]:
        """Return the number of simulated steps."""
        return {"steps": _STEPS}

    def line(self) -> dict[str, Any]:
        """Return the factors from a few steps with zero gradients."""
        import torch

        from decentral.cluster.clock import Clock
        from decentral.training.method import local_network, with_rate
        from decentral.training.stepper import Stepper

        config, n = self.config, self.n
        assert isinstance(config.cluster, Machines)
        links = replace(config.cluster.links, latency_s=1.0, bandwidth_gbps=math.inf)
        problem = config.task.open(config, range(n), torch.device("cpu"))
        try:
            x = problem.init().repeat(n, 1)
            layout, per_epoch = problem.layout(x[:1]), problem.steps_per_epoch
        finally:
            problem.close()
        net = local_network(config)
        clock = net.traffic.clock = Clock(
            n, config.cluster.gradient_times(n, 0), replace(config.cluster, links=links).costs(n)
        )

        def zeros(x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
            clock.gradient()
            return x.new_zeros(x.shape)

        stepper = Stepper(with_rate(config, lambda t: 1.0, layout, per_epoch), net, zeros, x)
        for _ in range(_STEPS):
            stepper.step()
        computed = float(clock.compute_s.max())
        return {"gradient_s": computed / _STEPS, "latencies": round((clock.latest_s - computed) / _STEPS, 9)}
