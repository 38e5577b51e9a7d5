"""The fastest way, by a rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.executions.batched import Batched
from decentral.executions.execution import Execution, Work
from decentral.executions.loop import Loop

if TYPE_CHECKING:
    from decentral.executions.passes.passes import Passes


@dataclass
class Auto(Execution):
    """Small models side by side, all others one by one.

    A rule by model, batch size and number of workers, never by time: a run that goes on after an interruption must
    take the very same steps. `passes.sizes` has the rule and what it comes from.
    """

    name: str = "auto"

    def passes(self, work: Work) -> Passes:
        """See `Execution.passes`."""
        return self.choice(work).passes(work)

    def choice(self, work: Work) -> Execution:
        """Which way it takes."""
        from decentral.executions.passes.layers import refusal, sequence
        from decentral.executions.passes.sizes import sizes

        module = work.models.modules[0]
        layers = sequence(module)
        if layers is None or refusal(module) is not None:
            return Loop()
        pays = sizes(layers, work.pictures, work.precision).pays(len(work.models.modules))
        return Batched() if pays else Loop()
