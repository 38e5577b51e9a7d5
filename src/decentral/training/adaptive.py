"""Adaptation during a run: the share of coordinates sent (`compress.adapt=`), and link measurements
(`network.measure=true`)."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from decentral.cluster.links import CollectiveName, LinkCosts, Links, Prices
from decentral.compression.compressor import MEASURED_EVERY
from decentral.compression.ratio import Ratio, Solver, changed, front, gains_at, grid
from decentral.network.settings import SMALL_BYTES, CollectiveChoice
from decentral.training.stepper import Stepper

if TYPE_CHECKING:
    from decentral.algorithms.algorithm import Algorithm
    from decentral.network.network import Network
    from decentral.network.settings import NetworkSettings
    from decentral.training.oracle import GradientOracle

_READINGS = 5
"""Number of gain readings averaged before a comparison: a reading is one step in ten."""
_STEPS_AVERAGED = 256


class AdaptiveStepper(Stepper):
    """A `Stepper` that chooses the ratio c after the warm-up, and again when the network or the gain changes.

    Exploring: each candidate trains for `explore_steps` steps from the current state, and the gain
    ||C(e)||^2 / ||e||^2 is averaged over steps and workers. Afterwards everything is restored: models, optimizer,
    residuals, the compressor's memory, draws and losses of the oracle, and the problem's state. Its simulated time and
    bytes are counted, since they are really spent.

    Deciding: the rule compares the communication time of the compressor's `combine` over the current links, or as last
    measured (`network.measure`), by the formulas of the collectives, with the gain, interpolated in log c, at the
    ratios of a grid or of the front that NSGA-II finds.

    When: if latency or seconds per byte of the slowest link differ by a tenth from those at the last decision, decide
    again, as gains do not depend on the network. If the gain over 50 steps differs by a tenth from that over the first
    50 steps after the last decision, explore and decide again.

    Departures: the authors' code of "Flexible Communication for Optimal Distributed Learning over Unpredictable
    Networks" explores on batches of the test data with new, uninitialized residuals, restores models but no momentum,
    fits an exponential to the known costs (off by 110 % at the strongest compression) and a quotient of exponentials to
    the gains, solves with NSGA-II for one unknown, treats any change of its schedule as a change of the network, and
    decides only then: never after the first exploration or one caused by the gain.
    """

    def __init__(self, algorithm: Algorithm, net: Network, oracle: GradientOracle, x: Tensor) -> None:
        super().__init__(algorithm, net, oracle, x)
        assert isinstance(algorithm.compressor, Ratio)
        self.compressor: Ratio = algorithm.compressor
        self.gradients = oracle
        self.size, self.dtype = x.shape[1], x.dtype
        self.gains: list[float] = []
        """The last explored gain of each candidate."""
        self.links: tuple[float, float] = (0.0, 0.0)
        """Latency and seconds per byte at the last decision."""
        self.readings: list[float] = []
        """Readings of the gain since the last comparison."""
        self.usual: float | None = None
        """The gain over the first steps after the last decision."""
        self.ratios: list[list[float]] = []
        """[step, ratio] of each decision."""
        self.explored = 0

    @property
    def prices(self) -> Prices:
        """Return the known costs of collectives."""
        assert self.net.prices is not None
        return self.net.prices

    def before_step(self) -> None:
        """See `Stepper`; then explore and decide if due."""
        super().before_step()
        if self.t < self.compressor.warmup_steps:
            return
        if not self.gains:
            self._explore()
            self._decide()
        elif any(map(changed, self.prices.costs.slowest, self.links)):
            self._decide()

    def step(self) -> None:
        """Take a step and read its gain."""
        super().step()
        if self.gains and (self.t - 1) % MEASURED_EVERY == 0:
            self._compare(self._gain())

    def choices(self) -> dict[str, Any]:
        """See `Stepper.choices`.

        ratios    [step, share of coordinates from then on] of each decision
        explored  number of explorations
        """
        if not self.ratios:
            return super().choices()
        return super().choices() | {"ratios": [[int(t), c] for t, c in self.ratios], "explored": self.explored}

    def on_the_way(self) -> dict[str, Any]:
        """Return the measurements and decisions so far."""
        names = ("gains", "links", "readings", "usual", "ratios", "explored")
        return super().on_the_way() | {"adaptive": {name: getattr(self, name) for name in names}}

    def go_on_from(self, step: int, part: dict[str, Any]) -> None:
        """See `Stepper.go_on_from`."""
        super().go_on_from(step, part)
        for name, value in part["adaptive"].items():
            setattr(self, name, value)
        if self.ratios:
            self.compressor.send_share(self.ratios[-1][1])

    def _gain(self) -> float:
        """Return the last reading of ||C(e)||^2 / ||e||^2, averaged over workers; the same on every process."""
        return self.net.gather(self.state.compression_stats)[:, 0].mean().item()

    def _compare(self, gain: float) -> None:
        """Process a reading of the gain."""
        self.readings.append(gain)
        if len(self.readings) < _READINGS:
            return
        mean = sum(self.readings) / len(self.readings)
        self.readings = []
        if self.usual is None:
            self.usual = mean
        elif changed(mean, self.usual):
            self.gains = []  # explore again before the next step

    def _decide(self) -> None:
        """Choose the best ratio by the rule, at current link costs."""
        c = self.compressor
        if c.solver is Solver.nsga2 and len(c.candidates) > 1:
            ratios = front(c.candidates, self.gains, self._seconds)
        else:
            ratios = grid(c.candidates, c.grid)
        gain = gains_at(ratios, c.candidates, self.gains)
        rule: Any = c.adapt.value
        best = rule().best(self._seconds(ratios), gain, self._compute_s())
        c.send_share(float(ratios[best]))
        self.ratios.append([self.t, float(ratios[best])])
        self.links, self.readings, self.usual = self.prices.costs.slowest, [], None

    def _seconds(self, ratios: np.ndarray) -> np.ndarray:
        """Return the exact communication time of this step at these ratios [m], at current link costs."""
        c, found = self.compressor, []
        for ratio in ratios.tolist():
            c.send_share(ratio)
            found.append(c.planned_s(self.prices, self.t, self.dtype))
        return np.array(found)

    def _compute_s(self) -> float:
        """Return the mean gradient time of the slowest worker over the first steps; without simulated time, that of the
        slowest process so far."""
        if self.net.traffic.clock is None:
            mean_s = self.gradients.seconds / max(1, self.gradients.calls)
            rows = torch.full((len(self.net.workers), 1), mean_s, dtype=torch.float64)
            return self.net.gather(rows).max().item()
        return float(self.net.traffic.clock.times.seconds(0, _STEPS_AVERAGED).max(axis=1).mean())

    def _explore(self) -> None:
        """Measure the gain of every candidate, then restore everything except time and bytes."""
        c, steps = self.compressor, self.compressor.explore_steps
        problem, keep = self.gradients.problem, c.keep
        live = [*self.gradients.rows().values(), self.state.compression_stats]  # changed by a step besides the state
        kept, remembered = [each.clone() for each in live], copy.deepcopy(problem.state())
        c.measure_always(True)
        for ratio in c.candidates:
            c.send_share(ratio)
            state, total = copy.deepcopy(self.state), 0.0
            for t in range(self.t, self.t + steps):
                state = self.algorithm.step(state, self.gradients, self.net, t)
                total += self._gain()
            self.gains.append(total / steps)
            for now, before in zip(live, kept, strict=True):
                now.copy_(before)
            if remembered:
                problem.load_state(copy.deepcopy(remembered))
        c.measure_always(False)
        c.send_share(keep)
        self.explored += 1


class Probe:
    """A periodic probe of links, from step 0 on: a small and a large message between workers, of s and l bytes:

        beta = (T_l - T_s) / (l - s),   alpha = T_s - s beta   at least 0, in seconds per byte and seconds

    with the times of the slowest pair (`Network.ping`), in simulated time if there is any, else real. It assumes equal
    links and workers that send and receive simultaneously. Decisions by link costs then use these two numbers
    (`Network.prices`); actual times are unchanged.
    """

    def __init__(
        self,
        net: Network,
        settings: NetworkSettings,
        collective: CollectiveName,
        whole_phases: bool = True,
        num_processes: int = 1,
    ) -> None:
        """`collective`, `whole_phases`: the all-reduce algorithm, and how its phases are counted (`cluster.links`).

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
        """Probe before step t, if due, and use the result from now on."""
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
        """Restore the result of `state`."""
        self.times, self.found = state["times"], state["found"]
        if self.times:
            self._go_by(*state["last"])

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
