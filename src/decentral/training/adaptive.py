"""Adaptation of the share of coordinates that is sent, during a run (`compress.adapt=`)."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from decentral.compression.compressor import MEASURED_EVERY
from decentral.compression.ratio import Ratio, Solver, changed, front, gains_at, grid
from decentral.training.stepper import Extension

if TYPE_CHECKING:
    from decentral.cluster.links import Prices
    from decentral.training.oracle import GradientOracle
    from decentral.training.stepper import Stepper

_READINGS = 5
"""Number of gain readings averaged before a comparison: a reading is one step in ten."""
_STEPS_AVERAGED = 256


class Adaptation(Extension):
    """Adaptive compression: it chooses the ratio c after the warm-up, and again when the network or the gain changes.

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

    def __init__(self, stepper: Stepper) -> None:
        """Adapt the compressor of the stepper's algorithm."""
        assert isinstance(stepper.algorithm.compressor, Ratio)
        self.compressor: Ratio = stepper.algorithm.compressor
        self.stepper, self.net, self.dtype = stepper, stepper.net, stepper.models.dtype
        self.gradients: GradientOracle = stepper.oracle  # type: ignore[assignment]
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

    def before_step(self, stepper: Stepper) -> None:
        """Explore and decide if due."""
        if stepper.t < self.compressor.warmup_steps:
            return
        if not self.gains:
            self._explore()
            self._decide()
        elif any(map(changed, self.prices.costs.slowest, self.links)):
            self._decide()

    def after_step(self, stepper: Stepper) -> None:
        """Read the gain of the step."""
        if self.gains and (stepper.t - 1) % MEASURED_EVERY == 0:
            self._compare(self._gain())

    def rows(self) -> dict[str, Any]:
        """Return the decisions.

        ratios    [step, share of coordinates from then on] of each decision
        explored  number of explorations
        """
        if not self.ratios:
            return {}
        return {"ratios": [[int(t), c] for t, c in self.ratios], "explored": self.explored}

    def state(self) -> dict[str, Any]:
        """Return the measurements and decisions so far."""
        names = ("gains", "links", "readings", "usual", "ratios", "explored")
        return {"adaptive": {name: getattr(self, name) for name in names}}

    def load_state(self, part: dict[str, Any], step: int) -> None:
        """See `Extension`."""
        vars(self).update(part["adaptive"])
        if self.ratios:
            self.compressor.send_share(self.ratios[-1][1])

    def _gain(self) -> float:
        """Return the last reading of ||C(e)||^2 / ||e||^2, averaged over workers; the same on every process."""
        return self.net.gather(self.stepper.state.compression_stats)[:, 0].mean().item()

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
        self.ratios.append([self.stepper.t, float(ratios[best])])
        self.links, self.readings, self.usual = self.prices.costs.slowest, [], None

    def _seconds(self, ratios: np.ndarray) -> np.ndarray:
        """Return the exact communication time of this step at these ratios [m], at current link costs."""
        c, found = self.compressor, []
        for ratio in ratios.tolist():
            c.send_share(ratio)
            found.append(c.planned_s(self.prices, self.stepper.t, self.dtype))
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
        live = [
            *self.gradients.rows().values(),
            self.stepper.state.compression_stats,
        ]  # changed by a step besides the state
        kept, remembered = [each.clone() for each in live], copy.deepcopy(problem.state())
        c.measure_always(True)
        for ratio in c.candidates:
            c.send_share(ratio)
            state, total = copy.deepcopy(self.stepper.state), 0.0
            for t in range(self.stepper.t, self.stepper.t + steps):
                state = self.stepper.algorithm.step(state, self.gradients, self.net, t)
                total += self._gain()
            self.gains.append(total / steps)
            for now, before in zip(live, kept, strict=True):
                now.copy_(before)
            if remembered:
                problem.load_state(copy.deepcopy(remembered))
        c.measure_always(False)
        c.send_share(keep)
        self.explored += 1
