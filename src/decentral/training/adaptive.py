"""What a run finds out and decides on its way: which share of the coordinates is sent (`compress.adapt=`), and what
links are like (`network.measure=true`)."""

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
"""How many readings of the gain are averaged before it is compared: a reading is one step in ten."""
_STEPS_AVERAGED = 256


class AdaptiveStepper(Stepper):
    """`Stepper`, with a ratio c that is decided after the warm-up, and again when the network or the gain changes.

    Exploring: for each candidate `explore_steps` steps of training from where the run is, with the gain
    ||C(e)||^2 / ||e||^2 of every step and worker averaged. Afterwards everything is as before: models, optimizer,
    residuals, what else the compressor remembers, draws and losses of the oracle, and what the problem remembers. The
    simulated time and the bytes that it takes are counted, as they are taken.

    Deciding: the rule compares the communication time of the compressor's `combine` over the links as they are now,
    or as they were measured last (`network.measure`), by the formulas of the collectives, and the gain, interpolated in
    log c, at the ratios of a grid, or of the front that NSGA-II finds.

    When: latency or seconds per byte of the slowest link differ by a tenth from those of the last decision: decide
    again, as gains do not depend on the network. The gain over 50 steps differs by a tenth from that over the first 50
    steps after the last decision: explore, and decide again.

    The authors' code of "Flexible Communication for Optimal Distributed Learning over Unpredictable Networks" does
    otherwise: it explores on batches of the test data with residuals begun anew and uninitialised, restores models but
    no momentum, fits an exponential to the costs, which it knows (off by 110 % at the strongest
    compression), and a quotient of exponentials to the gains, solves with NSGA-II for one unknown, takes any change of
    its schedule for a change of the network, and decides only then: never after the first exploration, nor after one
    that the gain has led to.
    """

    def __init__(self, algorithm: Algorithm, net: Network, oracle: GradientOracle, x: Tensor) -> None:
        super().__init__(algorithm, net, oracle, x)
        assert isinstance(algorithm.compressor, Ratio)
        self.compressor: Ratio = algorithm.compressor
        self.gradients = oracle
        self.size, self.dtype = x.shape[1], x.dtype
        self.gains: list[float] = []
        """Of each candidate, as explored last."""
        self.links: tuple[float, float] = (0.0, 0.0)
        """Latency and seconds per byte at the last decision."""
        self.readings: list[float] = []
        """Of the gain, since it was compared last."""
        self.usual: float | None = None
        """The gain over the first steps after the last decision."""
        self.ratios: list[list[float]] = []
        """[step, ratio] of each decision."""
        self.explored = 0

    @property
    def prices(self) -> Prices:
        """What is known of the time that collectives take."""
        assert self.net.prices is not None
        return self.net.prices

    def before_step(self) -> None:
        """See `Stepper`; then explore and decide, where it is time to."""
        super().before_step()
        if self.t < self.compressor.warmup_steps:
            return
        if not self.gains:
            self._explore()
            self._decide()
        elif any(map(changed, self.prices.costs.slowest, self.links)):
            self._decide()

    def step(self) -> None:
        """Take a step, and look at its gain."""
        super().step()
        if self.gains and (self.t - 1) % MEASURED_EVERY == 0:
            self._compare(self._gain())

    def choices(self) -> dict[str, Any]:
        """See `Stepper.choices`.

        ratios    [step, share of coordinates from then on] of each decision
        explored  how often candidates were tried out
        """
        if not self.ratios:
            return super().choices()
        return super().choices() | {"ratios": [[int(t), c] for t, c in self.ratios], "explored": self.explored}

    def on_the_way(self) -> dict[str, Any]:
        """What was measured and decided so far."""
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
        """||C(e)||^2 / ||e||^2 as read last, mean over all workers; the same on every process."""
        found = self.algorithm.compression_stats(self.state)
        assert found is not None
        return self.net.gather(found)[:, 0].mean().item()

    def _compare(self, gain: float) -> None:
        """Take a reading of the gain into account."""
        self.readings.append(gain)
        if len(self.readings) < _READINGS:
            return
        mean = sum(self.readings) / len(self.readings)
        self.readings = []
        if self.usual is None:
            self.usual = mean
        elif changed(mean, self.usual):
            self.gains = []  # before the next step they are explored again

    def _decide(self) -> None:
        """Take the ratio that is best by the rule, over the links as they are now."""
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
        """What communication takes in this step at these ratios [m], as links are now, each worked out exactly."""
        c, found = self.compressor, []
        for ratio in ratios.tolist():
            c.send_share(ratio)
            found.append(c.planned_s(self.prices, self.t, self.dtype))
        return np.array(found)

    def _compute_s(self) -> float:
        """How long the slowest worker's gradient takes in a step, on average over the first ones; without simulated
        time: how long those of the slowest process have taken so far."""
        if self.net.traffic.clock is None:
            mean_s = self.gradients.seconds / max(1, self.gradients.calls)
            rows = torch.full((len(self.net.workers), 1), mean_s, dtype=torch.float64)
            return self.net.gather(rows).max().item()
        return float(self.net.traffic.clock.times.seconds(0, _STEPS_AVERAGED).max(axis=1).mean())

    def _explore(self) -> None:
        """Find out the gain of every candidate; afterwards all is as it was, but for time and bytes."""
        c, steps = self.compressor, self.compressor.explore_steps
        problem, keep = self.gradients.problem, c.keep
        live = [*self.gradients.rows().values(), self.state.compression_stats]  # what a step changes beside its state
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
        n = net.n if net.traffic.clock is not None else self._num_processes
        links = self._links
        links.latency_s, links.bandwidth_gbps = alpha, 8e-9 / beta if beta else math.inf
        costs = LinkCosts(links, n)
        net.traffic.measured = Prices(n, costs, net.n / n)
        if net.traffic.clock is not None:
            net.traffic.measured.bytes_scale, net.traffic.clock.believed = net.traffic.clock.bytes_scale, costs
        net.fastest = lambda num_bytes: CollectiveChoice[costs.all_reduce(n, num_bytes)[0].name]
