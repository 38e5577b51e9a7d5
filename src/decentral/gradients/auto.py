"""The fastest way, by a rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.gradients.batched import Batched
from decentral.gradients.execution import Execution, Workload
from decentral.gradients.loop import Loop

if TYPE_CHECKING:
    from decentral.gradients.passes.passes import Passes


@dataclass
class Auto(Execution):
    """Small models side by side, all others one by one.

    A rule by model, batch size and number of workers, never by time: a run that goes on after an interruption must
    take the very same steps. `passes.sizes` has the rule and what it comes from.
    """

    name: str = "auto"

    def passes(self, workload: Workload) -> Passes:
        """The passes of the way that `choice` takes."""
        return self.choice(workload).passes(workload)

    def choice(self, workload: Workload) -> Execution:
        """`batched` where the layers' calls are so small that sharing them pays, else `loop`."""
        from decentral.gradients.passes.sizes import shared

        found = shared(workload)
        if isinstance(found, str) or not found[1].batched_is_faster(len(workload.models.modules)):
            return Loop()
        return Batched()

    def instead(self, workload: Workload, reason: str) -> Passes:
        """Those of `loop`."""
        return Loop().passes(workload)
