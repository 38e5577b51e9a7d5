"""Measurements of links during a run (`network.measure=true`), and the collectives chosen by their costs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from decentral.cluster.links import CollectiveName, LinkCosts, Links, Prices
from decentral.compression.ratio import changed
from decentral.network.settings import SMALL_BYTES, CollectiveChoice
from decentral.training.stepper import Extension, collective_rows

if TYPE_CHECKING:
    from decentral.config.schema import Config
    from decentral.network.network import Network
    from decentral.training.stepper import Stepper


class Probe(Extension):
    """A periodic probe of links, from step 0 on: a small and a large message between workers, of s and l bytes:

        beta = (T_l - T_s) / (l - s),   alpha = T_s - s beta   at least 0, in seconds per byte and seconds

    with the times of the slowest pair (`Network.ping`), in simulated time if there is any, else real. It assumes equal
    links and workers that send and receive simultaneously. Decisions by link costs then use these two numbers
    (`Network.prices`); actual times are unchanged.
    """

    def __init__(self, config: Config, net: Network) -> None:
        """Create the probe of the run's network: the real one, or in simulated time the virtual one."""
        self._net, self._settings = net, config.network
        self._links, self._num_processes = Links(copy_gbps=math.inf), 1
        if net.traffic.clock is not None:
            links = config.cluster.links
            self._links.collective, self._links.whole_phases = links.collective, links.whole_phases
        else:
            self._links.collective = _collective(net, config.network.collective)
            self._num_processes = dist.get_world_size()
        self.times = 0
        self.found: list[list[float]] = []
        """[step, latency in seconds, seconds per byte] of those probes that differ by a tenth from the one before."""
        self.last = 0.0, 0.0

    def before_step(self, stepper: Stepper) -> None:
        """Probe, if due, and use the result from now on."""
        if stepper.t % self._settings.measure_every_steps:
            return
        small, large = (self._net.ping(size) for size in (SMALL_BYTES, self._settings.measure_bytes))
        beta = max(0.0, large - small) / (self._settings.measure_bytes - SMALL_BYTES)
        self.times += 1
        self._go_by(max(0.0, small - SMALL_BYTES * beta), beta)
        known = self.found[-1][1:] if self.found else [math.inf, math.inf]
        if any(map(changed, self.last, known)):
            self.found.append([stepper.t, *self.last])

    def rows(self) -> dict[str, Any]:
        """Return the probes.

        measured   [step, latency in ms, Gbit/s] of those probes that differ by a tenth from the one before (null: too
                   fast to tell)
        probes     number of probes
        """
        rows = [
            [int(t), round(1e3 * alpha, 6), float(f"{8e-9 / beta:.6g}") if beta else None]
            for t, alpha, beta in self.found
        ]
        return {"measured": rows, "probes": self.times} | collective_rows(self._net.traffic.carried)

    def state(self) -> dict[str, Any]:
        """Return the probes so far."""
        return {"probe": {"times": self.times, "found": self.found, "last": list(self.last)}}

    def load_state(self, part: dict[str, Any], step: int) -> None:
        """See `Extension`."""
        self.times, self.found, last = (part["probe"][name] for name in ("times", "found", "last"))
        if self.times:
            self._go_by(*last)

    def _go_by(self, alpha: float, beta: float) -> None:
        net, self.last = self._net, (alpha, beta)
        n = net.n if net.traffic.clock is not None else self._num_processes
        links = self._links
        links.latency_s, links.bandwidth_gbps = alpha, 8e-9 / beta if beta else math.inf
        costs = LinkCosts(links, n)
        net.traffic.measured = Prices(n, costs, net.n / n)
        if net.traffic.clock is not None:
            net.traffic.measured.bytes_scale, net.traffic.clock.believed = net.traffic.clock.bytes_scale, costs
        net.fastest = lambda num_bytes: CollectiveChoice[costs.all_reduce(n, num_bytes)[0].name]


def _collective(net: Network, choice: CollectiveChoice) -> CollectiveName:
    """Return the algorithm of an all-reduce between processes.

    The library's own is a ring in gloo and nccl; in shared memory each process sums a share.
    """
    if choice is not CollectiveChoice.library:
        return CollectiveName[choice.name]
    return CollectiveName.direct if net.facts.get("transport") == "shared_memory" else CollectiveName.ring
