"""Workers side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.gradients.execution import Execution, Workload

if TYPE_CHECKING:
    from decentral.gradients.passes.passes import Passes


@dataclass
class Batched(Execution):
    """Several workers in each call of a layer: batched matrix products and grouped convolutions.

    For plain sequences of the layers in `passes.layers`. Many small calls become few larger ones, which pays for small
    models and for no others: on a CPU, batched kernels are slower than those of a single model.
    """

    name: str = "batched"

    def passes(self, workload: Workload) -> Passes:
        """A pass for each group of workers. Raises ConfigError unless the model is a plain sequence of known layers."""
        from decentral.gradients.passes.replayed import replayed
        from decentral.gradients.passes.side_by_side import SideBySide
        from decentral.gradients.passes.sizes import shared

        found = shared(workload)
        if isinstance(found, str):
            return self.instead(workload, found)
        layers, sizes = found
        return replayed(SideBySide(workload, layers, sizes.workers_at_once(workload.models.device)))
