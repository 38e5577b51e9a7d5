"""One worker after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.executions.execution import Execution, Work

if TYPE_CHECKING:
    from decentral.executions.passes.passes import Passes


@dataclass
class Loop(Execution):
    """A forward and a backward pass for each worker in turn: any model, and the memory of one worker's activations."""

    name: str = "loop"

    def passes(self, work: Work) -> Passes:
        """See `Execution.passes`."""
        from decentral.executions.passes.one_by_one import OneByOne

        return OneByOne(work.models, work.precision)
