"""How many latencies a step of a method has in which all wait for all: a job."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.cluster.cluster import Machines
from decentral.jobs.computation import Computation
from decentral.store.lines import LineFile

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.cluster.clock import Clock

_STEPS = 4


@dataclass(frozen=True)
class LinkFactors(Computation):
    """A step of config.algo, with the layout of the configured model, on links of one second that carry anything.

    A line of factors.jsonl: {"gradient_s": seconds of a gradient, "latencies": of a step}. With them, the time of a
    run on other links follows from its time on some: see `study.kinds.over_links`.
    """

    folder: ClassVar[str] = "link_factors"
    lines: ClassVar[str] = "factors.jsonl"

    def parameters(self) -> dict[str, Any]:
        """How many steps are looked at."""
        return {"steps": _STEPS}

    def work(self, lines: LineFile, stop: Callable[[], bool], show: Callable[[float, str], None]) -> bool:
        """A few steps with zeros for gradients."""
        if not lines.known:
            lines.append(self._line())
        return True

    def _line(self) -> dict[str, Any]:
        import torch

        from decentral.cluster.clock import Clock
        from decentral.training.assemble import local_network, with_rate
        from decentral.training.stepper import Stepper

        config = self.config
        assert isinstance(config.cluster, Machines) and config.num_workers is not None
        n = config.num_workers
        links = replace(config.cluster.links, latency_s=1.0, bandwidth_gbps=math.inf)
        problem = config.task.open(config, range(n), torch.device("cpu"))
        try:
            x = problem.init().repeat(n, 1)
            layout, per_epoch = problem.layout(x[:1]), problem.steps_per_epoch
        finally:
            problem.close()
        net = local_network(config)
        clock = net.clock = Clock(n, config.cluster.gradient_times(n, 0), replace(config.cluster, links=links).costs(n))
        stepper = Stepper(with_rate(config, lambda t: 1.0, layout, per_epoch), net, _Zeros(clock), x)
        for _ in range(_STEPS):
            stepper.step()
        computed = float(clock.compute_s.max())
        return {"gradient_s": computed / _STEPS, "latencies": round((clock.latest_s - computed) / _STEPS, 9)}


class _Zeros:
    """An oracle that takes simulated time and gives zeros."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __call__(self, x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
        self.clock.gradient()
        return x.new_zeros(x.shape)
