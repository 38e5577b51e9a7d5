"""Workers side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.errors import ConfigError
from decentral.executions.execution import Execution, Work

if TYPE_CHECKING:
    from decentral.executions.passes.passes import Passes


@dataclass
class Batched(Execution):
    """Several workers in each call of a layer: batched matrix products and grouped convolutions.

    For plain sequences of the layers in `passes.layers`. Many small calls become few larger ones, which pays for small
    models and for no others: on a CPU, batched kernels are slower than those of a single model.
    """

    name: str = "batched"

    def passes(self, work: Work) -> Passes:
        """See `Execution.passes`."""
        from decentral.executions.passes.layers import refusal, sequence
        from decentral.executions.passes.side_by_side import SideBySide
        from decentral.executions.passes.sizes import sizes

        reason = refusal(work.models.modules[0])
        if reason is not None:
            raise ConfigError(
                f"execution=batched cannot compute the workers of this model side by side, since {reason}: it is for "
                "plain sequences of layers, such as model=mlp or model=cnn; use execution=auto or loop."
            )
        layers = sequence(work.models.modules[0])
        assert layers is not None
        together = sizes(layers, work.pictures, work.precision).together(work.models.device)
        return SideBySide(work.models, layers, together, work.precision)
