"""Workers side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.errors import ConfigError
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
        from decentral.gradients.passes.layers import refusal, sequence
        from decentral.gradients.passes.replayed import replayed
        from decentral.gradients.passes.side_by_side import SideBySide
        from decentral.gradients.passes.sizes import call_sizes

        reason = refusal(workload.models.modules[0])
        if reason is not None:
            raise ConfigError(
                f"execution=batched cannot compute the workers of this model side by side, since {reason}: it is for "
                "plain sequences of layers, such as model=mlp or model=cnn; use execution=auto or loop."
            )
        layers = sequence(workload.models.modules[0])
        assert layers is not None
        sizes = call_sizes(layers, workload.batch_shape, workload.precision)
        return replayed(SideBySide(workload, layers, sizes.workers_at_once(workload.models.device)))
