"""How long it takes to work out the time of a method in a virtual cluster, without training."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target

_METHODS = (
    *("allreduce", "local_sgd", "dpsgd", "sgp", "relaysgd", "gradient_tracking"),
    *("wagma", "eager_sgd", "adpsgd", "a2cid2", "async_push_sum"),
)
_STEPS = 400
_PARAMETERS = 1_000_000
_AT_MOST_S = {1024: 2.0, 4096: 15.0}
_QUICK = 16
_COLUMNS = {
    "method": "method",
    "num_workers": "n",
    "cpu_s": "timeline (s CPU)",
    "per_gradient_us": "per gradient (us CPU)",
    "simulated_s": "simulated (s)",
}


@dataclass
class TimelineAlone(Benchmark):
    """400 steps of every method in a cluster in which every gradient takes another time."""

    name: str = "timeline"
    title: ClassVar[str] = "seconds of CPU for the timeline of 400 steps of 1,024 and of 4,096 workers"

    def measure(self, effort: Effort) -> Findings:
        """Each method once with the larger number of workers, and as often as there are rounds with the smaller one."""
        sizes = (_QUICK,) if effort.quick else tuple(_AT_MOST_S)
        rows = [row(method, n, effort.rounds if n < 2048 else 1) for n in sizes for method in _METHODS]
        targets = []
        for n in sizes:
            slowest = max((one for one in rows if one["num_workers"] == n), key=lambda one: float(one["cpu_s"]))
            measure = f"timeline of {_STEPS} steps of {n:,} workers, slowest method: {slowest['method']} (s CPU)"
            targets.append(Target(measure, slowest["cpu_s"], at_most=_AT_MOST_S.get(n, 2.0)))
        return Findings([Table("Time alone, without training", _COLUMNS, rows)], targets)


def row(method: str, num_workers: int, repeats: int) -> dict[str, Any]:
    """The least CPU time of so many attempts."""
    from decentral.config.composition import compose
    from decentral.training.timing import timed

    config = compose(
        [
            *(f"algo={method}", f"num_workers={num_workers}", "task=quadratics", "cluster=even"),
            *("cluster.compute.distribution=lognormal", "cluster.compute.sigma=0.3"),
        ]
    )
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        found = timed(config, _STEPS, _PARAMETERS)
        seconds.append(time.process_time() - began)
    return {
        "method": method,
        "num_workers": num_workers,
        "cpu_s": min(seconds),
        "per_gradient_us": 1e6 * min(seconds) / found.gradients,
        "simulated_s": found.simulated_s,
    }
