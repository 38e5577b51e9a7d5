"""What links are like, found out by messages that are sent: `network.measure=true`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from decentral.cluster.costs import LinkCosts, Prices
from decentral.cluster.links import CollectiveName, Links
from decentral.compression.adaptation import changed
from decentral.network.settings import SMALL_BYTES, CollectiveChoice

if TYPE_CHECKING:
    from decentral.network.network import Network
    from decentral.network.settings import NetworkSettings


class Probe:
    """Every so many steps, from step 0 on, a small and a large message from worker to worker, of s and l bytes:

        beta = (T_l - T_s) / (l - s),   alpha = T_s - s beta   at least 0, in seconds per byte and seconds

    with the times of the slowest pair (`Network.ping`), simulated where there is simulated time, else real. All links
    count as alike, and workers as able to send and to receive at the same time. From then on what is decided by what
    links cost goes by these two numbers (`Network.prices`); what it takes stays what it is.
    """

    def __init__(
        self,
        net: Network,
        settings: NetworkSettings,
        collective: CollectiveName,
        whole_phases: bool = True,
        num_processes: int = 1,
    ) -> None:
        """`collective`, `whole_phases`: how an all-reduce is carried out, and its phases counted (`cluster.links`).

        num_processes   whose messages are timed, where there is no simulated time
        """
        self._net, self._settings = net, settings
        self._links = Links(copy_gbps=math.inf, collective=collective, whole_phases=whole_phases)
        self._num_processes = num_processes
        self.times = 0
        self.found: list[list[float]] = []
        """[step, latency in seconds, seconds per byte] of those probes that differ by a tenth from the one before."""
        self.last = 0.0, 0.0

    def look(self, t: int) -> None:
        """Before step t: send messages, if it is time to, and go by what is found from now on."""
        if t % self._settings.measure_every_steps:
            return
        small, large = (self._net.ping(size) for size in (SMALL_BYTES, self._settings.measure_bytes))
        beta = max(0.0, large - small) / (self._settings.measure_bytes - SMALL_BYTES)
        self.times += 1
        self._go_by(max(0.0, small - SMALL_BYTES * beta), beta)
        known = self.found[-1][1:] if self.found else [math.inf, math.inf]
        if any(map(changed, self.last, known)):
            self.found.append([t, *self.last])

    def facts(self) -> dict[str, Any]:
        """For the records.

        measured   [step, latency in ms, Gbit/s] of those probes that differ by a tenth from the one before (null: too
                   fast to tell)
        probes     how many there were
        """
        rows = [
            [int(t), round(1e3 * alpha, 6), float(f"{8e-9 / beta:.6g}") if beta else None]
            for t, alpha, beta in self.found
        ]
        return {"measured": rows, "probes": self.times}

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"times": self.times, "found": self.found, "last": list(self.last)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what `state` once gave."""
        self.times, self.found = state["times"], state["found"]
        if self.times:
            self._go_by(*state["last"])

    def _go_by(self, alpha: float, beta: float) -> None:
        net, self.last = self._net, (alpha, beta)
        n = net.n if net.clock is not None else self._num_processes
        links = self._links
        links.latency_s, links.bandwidth_gbps = alpha, 8e-9 / beta if beta else math.inf
        costs = LinkCosts(links.open(n), n)
        net.measured = Prices(n, costs, net.n / n)
        if net.clock is not None:
            net.measured.bytes_scale, net.clock.believed = net.clock.bytes_scale, costs
        net.fastest = lambda num_bytes: CollectiveChoice[CollectiveName(type(costs.all_reduce(n, num_bytes)[0])).name]
