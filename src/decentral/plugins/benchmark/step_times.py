"""The times and bytes of the steps of methods in rounds, without training."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from decentral.cluster.cluster import VirtualCluster
from decentral.config.identity import component_identity, identity
from decentral.config.prepared import prepare
from decentral.config.schema import Config
from decentral.measurements.measurement import Computation


@dataclass
class StepTimes(Computation):
    """When methods in rounds have taken each of their steps in each of some clusters, and what they have sent by then.

    A line for each run and cluster: {"of": the run's id, "clock": that of the cluster, "simulated_s": after 0, 1, ...
    steps, "bytes_sent": by all workers}. `config` is the first run's.
    """

    runs: dict[str, Config] = field(default_factory=dict)
    clusters: dict[str, VirtualCluster] = field(default_factory=dict)
    """Which say how large the model is whose messages are timed."""

    folder: ClassVar[str] = "step_times"

    def parameters(self) -> dict[str, Any]:
        """The runs and the clusters."""
        clusters = {name: component_identity(cluster) for name, cluster in self.clusters.items()}
        return {"runs": {name: identity(run) for name, run in self.runs.items()}, "clusters": clusters}

    def parts(self) -> list[dict[str, Any]]:
        """One for each run and cluster."""
        return [{"of": run, "clock": name} for run in self.runs for name in self.clusters]

    def line(self, of: str, clock: str) -> dict[str, Any]:
        """Return the line of a part."""
        from decentral.training.timing import at_each_step

        seconds, sent = at_each_step(prepare(replace(self.runs[of], cluster=self.clusters[clock])))
        return {"simulated_s": [float(f"{each:.9g}") for each in seconds], "bytes_sent": sent}
