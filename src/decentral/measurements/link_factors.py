"""How many latencies a step of a method has in which all wait for all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.cluster.cluster import Machines
from decentral.measurements.computation import Computation

if TYPE_CHECKING:
    from torch import Tensor

_STEPS = 4


@dataclass
class LinkFactors(Computation):
    """A step of config.algo, with the layout of the configured model, on links of one second that carry anything.

    A line: {"gradient_s": seconds of a gradient, "latencies": of a step}. With them, the time of a run on other links
    follows from its time on some: see `study.kinds.over_links`.
    """

    folder: ClassVar[str] = "link_factors"
    lines: ClassVar[str] = "factors.jsonl"

    def parameters(self) -> dict[str, Any]:
        """How many steps are looked at."""
        return {"steps": _STEPS}

    def parts(self) -> list[dict[str, Any]]:
        """One line."""
        return [{}]

    def line(self) -> dict[str, Any]:
        """A few steps with zeros for gradients."""
        import torch

        from decentral.cluster.clock import Clock
        from decentral.training.assemble import local_network, with_rate
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
