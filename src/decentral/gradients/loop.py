"""One worker after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.gradients.execution import Execution, Workload

if TYPE_CHECKING:
    from decentral.gradients.passes.passes import Passes


@dataclass
class Loop(Execution):
    """A forward and a backward pass for each worker in turn: any model, and the memory of one worker's activations."""

    name: str = "loop"

    def passes(self, workload: Workload) -> Passes:
        """A pass for each worker in turn; there is no model that it refuses."""
        from decentral.gradients.passes.one_by_one import OneByOne
        from decentral.gradients.passes.replayed import replayed

        return replayed(OneByOne(workload.models, workload.precision, workload.loss))
