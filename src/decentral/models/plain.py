"""A user's torch class: model=mymodule:MyNet."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.data.dataset import DataDescription, LabelledData
from decentral.models.model import Model
from decentral.registry import blame
from decentral.registry.signature import Plain, call, component_from, further

if TYPE_CHECKING:
    from torch import nn

GIVEN = ("num_classes", "in_channels", "in_features", "input_shape")
"""Parameters that the data determine: the number of classes, the first number of the shape, their product, the
shape."""


class PlainModel(Plain, Model):
    """A class of torch modules, or a function that returns one; its parameters are the settings."""

    takes: ClassVar[type[DataDescription]] = LabelledData

    def build(self, data: LabelledData) -> nn.Module:
        """Return a copy of the class's object, after a trial on two examples of zeros. Raises ConfigError if that
        fails.

        Its numbers keep their precision. It is in train mode, except for parts that were not.
        """
        return self.tried(self.made(data), data)

    def made(self, data: LabelledData) -> Any:
        """Create an object of the class."""
        given = (data.num_classes, data.shape[0] if data.shape else 1, prod(data.shape), data.shape)
        known = dict(zip(("num_classes", "in_chans"), given, strict=False)) if self._of_timm() else {}
        known |= self.settings()
        with blame.named(f"model={self.name} cannot be built"):
            return call(self.target(), dict(zip(GIVEN, given, strict=True)), **known)

    def _of_timm(self) -> bool:
        """Return whether it is a function of timm: all of these take the parameters by name, but do not declare
        them."""
        return getattr(self, "plain_module", "").partition(".")[0] == "timm" and bool(further(self.target()))

    def tried(self, original: Any, data: LabelledData) -> nn.Module:
        """Return a copy of the created module, as `build` does."""
        from decentral.models.layers.foreign import tried

        return tried(self, original, data)


def plain(name: str, target: Callable[..., Any]) -> type:
    """Return the model of this name that calls a class or function."""
    return component_from("models", name, target, PlainModel, GIVEN)
