"""The interface of adapters of given modules, such as `model.lora=`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from decentral.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from decentral.compression.rows import RowLayout


class Adapter(Settings, ABC, where="model"):
    """An addition to a given module, of which little besides the addition is trained: `model.NAME={...}`.

    A dataclass with a name; its fields are the settings.
    """

    name: str

    @abstractmethod
    def adapt(self, module: nn.Module, has_classes: bool) -> tuple[nn.Module, str]:
        """Return the module with the addition, and a note on it: frozen parameters have requires_grad=False.

        `has_classes` is true if it classifies examples. Raises ConfigError if it does not fit the module.
        """

    def averaged(self, mean: Tensor, layout: RowLayout, rows: Callable[[slice], Tensor]) -> Tensor:
        """Return the averaged model [P], by default the mean [P] of the models.

        rows   returns these columns of all m averaged models, [m, columns] on the CPU; all processes call it alike
        """
        return mean
